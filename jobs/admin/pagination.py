"""Page through long lists without counting them: counting a large table costs more than reading its first page."""

from typing import Any

from django.core.paginator import EmptyPage, Page, Paginator


class UncountedPaginator(Paginator):  # type: ignore[type-arg]
    """Read one row more than a page holds to know whether a next page exists."""

    count = 1_000_000_000  # More than one page, so that Django pages the list; it never shows the number.
    template_name = "jobs/pagination.html"
    has_more = False

    def page(self, number: Any) -> "Page[Any]":
        number = max(1, int(number))
        if number > self.num_pages:
            raise EmptyPage("there is no such page")
        first = (number - 1) * self.per_page
        rows = list(self.object_list[first : first + self.per_page + 1])
        self.has_more = len(rows) > self.per_page
        return Page(rows[: self.per_page], number, self)

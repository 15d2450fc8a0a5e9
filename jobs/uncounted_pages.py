"""Pages of long lists that are never counted: the number of rows of a large table costs more than its first page."""

from typing import TYPE_CHECKING, Any

from django.core.paginator import EmptyPage, Page, Paginator

if TYPE_CHECKING:
    Pages = Paginator[Any]
else:
    Pages = Paginator


class Uncounted(Pages):
    """One row more than a page holds says whether there is a next page."""

    count = 1_000_000_000  # more than a page: Django then asks for pages, and never for the number
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

"""`of(task).run_now(…)` and `of(task).schedule(at=…)` on every kind of task, and what a caller gets back."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery, Task, chain, group, shared_task
from celery.worker.request import Request

from scheduler_project.sdk import Beatkeeper
from scheduler_project.sdk.declarations.plan import DeclaredJob
from scheduler_project.sdk.errors import PlatformAway, PlatformRefused
from scheduler_project.sdk.host.interface import NewRunRequest, RequestStatus
from scheduler_project.sdk.host.requested_run import RequestedRun

AT = datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)


class FakeLink:
    def __init__(self) -> None:
        self.requests: list[NewRunRequest] = []
        self.answers = [RequestStatus(uuid4(), "requested")]
        self.raises: Exception | None = None
        self.cancelled: list[UUID] = []

    def declared(self) -> list[DeclaredJob]:
        return []

    def declare(self, *_arguments: Any, **_options: Any) -> list[DeclaredJob]:
        return []

    def request(self, requested: NewRunRequest) -> RequestStatus:
        self.requests.append(requested)
        return self._next()

    def requested(self, request_id: UUID) -> RequestStatus:
        return self._next()

    def cancel(self, request_id: UUID) -> RequestStatus:
        self.cancelled.append(request_id)
        return replace(self.answers[0], state="cancelled")

    def _next(self) -> RequestStatus:
        if self.raises:
            raise self.raises
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def nothing() -> None: ...


def of(task: object) -> Any:
    """With the methods that it was given."""
    return task


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def keeper(app: Celery, link: FakeLink) -> Beatkeeper:
    keeper = Beatkeeper(app, ledger="python://nowhere/none", tenant="acme", pool="payments")
    keeper._link = link
    return keeper


class OwnRequest(Request):
    pass


class OwnTask(Task):  # type: ignore[type-arg]
    Request = OwnRequest  # type: ignore[assignment]

    def schedule(self) -> str:
        return "the class' own"


def test_a_declared_task_gets_both_methods(keeper: Beatkeeper, link: FakeLink) -> None:
    @keeper.job("settle", cron="0 5 * * *", priority=700, retries=2)
    @keeper.app.task(shared=False, name="shop.settle")
    def settle(day: int = 0) -> int:
        return day

    of(settle).run_now([7], key="k")
    of(settle).schedule(kwargs={"day": 8}, at=AT, key="k2")
    once, later = link.requests
    assert (once.key, once.at) == ("k", None)
    assert once.spec == {"name": "settle", "input": {"args": [7]}}
    assert later.at == AT.replace(microsecond=123000)
    assert later.spec["target"] == {"kind": "celery", "task": "shop.settle", "args": [], "kwargs": {"day": 8}}
    assert (later.spec["priority"], later.spec["retry"]) == (700, {"max_attempts": 3})
    # Nothing that `POST /jobs` does not know, such as the code base that declares it.
    assert set(later.spec) == {"name", "target", "priority", "retry"}
    assert later.spec["name"].startswith("settle at 2030-01-01 12:00:00 ")
    assert settle(3) == 3


def test_a_second_keeper_of_the_app_gets_later_requests(keeper: Beatkeeper, link: FakeLink) -> None:
    @keeper.job("settle")
    @keeper.app.task(shared=False, name="shop.settle")
    def settle() -> None: ...

    second = Beatkeeper(keeper.app, ledger="python://nowhere/none")
    second._link = later = FakeLink()
    of(settle).run_now()
    of(settle).schedule(at=AT)
    assert (len(link.requests), len(later.requests)) == (0, 2)


def test_the_same_key_makes_the_same_words_and_no_key_makes_new_ones(
    keeper: Beatkeeper, link: FakeLink
) -> None:
    @keeper.job()
    @keeper.app.task(shared=False, name="shop.settle")
    def settle() -> None: ...

    for key in ("k", "k", None, None):
        of(settle).schedule(at=AT, key=key)
    first, second, third, fourth = link.requests
    assert first == second
    assert (
        len({first.key, third.key, fourth.key}) == 3 == len({a.spec["name"] for a in (first, third, fourth)})
    )


def test_shared_bound_and_class_based_tasks(keeper: Beatkeeper, link: FakeLink) -> None:
    keeper.app.set_current()

    @keeper.job()
    @shared_task(name="shop.shared")
    def shared() -> str:
        return "shared"

    @keeper.job()
    @keeper.app.task(shared=False, name="shop.bound", bind=True)
    def bound(self: Any) -> str:
        return str(self.name)

    class Old(Task):  # type: ignore[type-arg]
        name = "shop.old"

        def run(self) -> str:
            return "old"

    old = keeper.job()(keeper.app.register_task(Old()))
    keeper.app.finalize()
    for task in (shared, bound, old):
        of(task).run_now()
    assert [requested.spec["name"] for requested in link.requests] == [
        "shop.shared",
        "shop.bound",
        "shop.old",
    ]
    assert (shared(), bound(), old()) == ("shared", "shop.bound", "old")


@pytest.fixture
def other() -> Iterator[Celery]:
    other = Celery("other", broker="memory://", set_as_current=False)
    yield other
    other.close()


def test_a_shared_task_of_two_apps_has_the_methods_in_the_keepers_own(
    keeper: Beatkeeper, link: FakeLink, other: Celery
) -> None:
    """Which app is the current one is an accident of what was imported last."""
    other.set_current()

    @keeper.job("settle")
    @shared_task(name="shared.settle")
    def settle() -> None: ...

    keeper.app.finalize()
    other.finalize()
    of(keeper.app.tasks["shared.settle"]).run_now()
    of(settle).run_now()
    assert len(link.requests) == 2


def test_a_shared_task_that_two_keepers_declare_uses_that_of_its_app(
    keeper: Beatkeeper, link: FakeLink, other: Celery
) -> None:
    second = Beatkeeper(other, ledger="python://nowhere/none")
    second._link = others = FakeLink()
    other.set_current()

    @second.job("bill")
    @keeper.job("bill")
    @shared_task(name="shared.bill")
    def bill() -> None: ...

    keeper.app.finalize()
    other.finalize()
    of(keeper.app.tasks["shared.bill"]).run_now()
    assert (len(link.requests), len(others.requests)) == (1, 0)
    of(bill).run_now()
    assert (len(link.requests), len(others.requests)) == (1, 1)


def test_methods_of_a_tasks_own_class_stay(keeper: Beatkeeper, link: FakeLink) -> None:
    @keeper.job()
    @keeper.app.task(shared=False, name="shop.own", base=OwnTask)
    def own() -> None: ...

    assert of(own).schedule() == "the class' own"
    assert of(own).Request is OwnRequest
    keeper.schedule(own, at=AT)
    assert len(link.requests) == 1


def test_canvas_is_left_alone(keeper: Beatkeeper) -> None:
    @keeper.job(every=60)
    @keeper.app.task(shared=False, name="shop.add")
    def add(one: int, two: int) -> int:
        return one + two

    keeper.app.conf.task_always_eager = True
    assert chain(add.s(1, 2), add.s(3))().get() == 6
    assert sorted(group(add.s(number, 0) for number in range(3))().get()) == [0, 1, 2]
    assert add.delay(1, 1).get() == 2


def test_declaring_reads_no_setting_before_the_app_has_them(keeper: Beatkeeper) -> None:
    """A Django code base declares while its settings are still to come."""
    keeper.app.set_current()

    @keeper.job(every=60)
    @keeper.app.task(shared=False)
    def early() -> None: ...

    @keeper.job(every=60)
    @shared_task
    def shared() -> None: ...

    app: Any = keeper.app
    assert not app.configured and not app.finalized


def test_a_task_declared_twice_is_named_by_its_job(keeper: Beatkeeper, link: FakeLink) -> None:
    task = keeper.app.task(shared=False, name="shop.report")(nothing)
    for name in ("daily", "weekly"):
        keeper.job(name, every=60)(task)
    with pytest.raises(ValueError, match="declared as 'daily', 'weekly': say which with job="):
        of(task).run_now()
    of(task).run_now(job="weekly")
    assert link.requests[0].spec["name"] == "weekly"
    with pytest.raises(ValueError, match="not declared as the job 'monthly'"):
        of(task).run_now(job="monthly")


def test_an_undeclared_task_may_be_scheduled_but_not_run_as_its_job(
    keeper: Beatkeeper, link: FakeLink
) -> None:
    task = keeper.app.task(shared=False, name="shop.plain")(nothing)
    keeper.schedule(task, at=AT)
    assert link.requests[0].spec["target"]["task"] == "shop.plain"
    with pytest.raises(ValueError, match=r"put @keeper\.job\(\) above it"):
        keeper.run_now(task)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"args": [object()]}, "args cannot be written as JSON"),
        ({"kwargs": {"x": float("nan")}}, "kwargs cannot be written as JSON"),
        ({"at": "tomorrow"}, "no instant"),
        ({"at": datetime(2030, 1, 1)}, "no timezone"),
        ({"key": "a\nb"}, "key"),
        ({"key": "x" * 201}, "key"),
    ],
)
def test_a_mistake_is_raised_at_once_and_nothing_is_requested(
    keeper: Beatkeeper, link: FakeLink, options: dict[str, Any], said: str
) -> None:
    task = keeper.job()(keeper.app.task(shared=False, name="shop.settle")(nothing))
    with pytest.raises(ValueError, match=said):
        of(task).schedule(**{"at": AT, **options})
    assert link.requests == []


def handle(link: FakeLink) -> RequestedRun:
    return RequestedRun(lambda: link, link.request(NewRunRequest("k", {})))


@pytest.fixture
def eager(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Beatkeeper:
    """As in a code base's tests: no address of a platform is known."""
    for name in ("DATABASE_URL", "BEATKEEPER_DATABASE_URL", "BEATKEEPER_URL"):
        monkeypatch.delenv(name, raising=False)
    app.conf.task_always_eager = True
    return Beatkeeper(app)


def test_of_an_eager_app_a_run_is_carried_out_at_once(eager: Beatkeeper) -> None:
    @eager.job("settle", args=[1], kwargs={"day": 2})
    @eager.app.task(shared=False, name="shop.settle", bind=True)
    def settle(self: Any, shop: int, day: int = 0) -> list[Any]:
        return [self.request.id, shop, day]

    for requested, shop, day in (
        (of(settle).run_now(), 1, 2),
        (of(settle).run_now([3], key="k"), 3, 2),
        (of(settle).schedule(kwargs={"day": 4}, at=AT), 1, 4),
        (eager.schedule(settle, [5], at=AT, key="k"), 5, 2),
    ):
        assert requested.succeeded and requested.finished
        assert requested.wait(0).result == [str(requested.run_id), shop, day]
        assert requested.refresh().state == requested.cancel().state == "succeeded"
        found = eager.requested(requested.id)
        assert (found.id, found.key, found.at, found.result) == (
            requested.id,
            requested.key,
            requested.at,
            requested.result,
        )
    with pytest.raises(PlatformRefused, match="no request"):
        eager.requested(uuid4())


def test_of_an_eager_app_a_failure_is_the_runs_or_the_callers(eager: Beatkeeper) -> None:
    @eager.job()
    @eager.app.task(shared=False, name="shop.fails")
    def fails() -> None:
        raise KeyError("gone")

    failed = of(fails).run_now()
    assert (failed.state, failed.result, failed.succeeded) == ("dead", None, False)
    eager.app.conf.task_eager_propagates = True
    with pytest.raises(KeyError, match="gone"):
        of(fails).run_now()


def test_of_an_eager_app_a_mistake_is_raised_as_ever(eager: Beatkeeper) -> None:
    task: Any = eager.job()(eager.app.task(shared=False, name="shop.settle")(nothing))
    with pytest.raises(ValueError, match="args cannot be written as JSON"):
        task.run_now([object()])
    with pytest.raises(ValueError, match="key"):
        task.run_now(key="a\nb")


def test_a_handle_is_waited_for_and_says_what_came_of_it(link: FakeLink) -> None:
    identity, run = uuid4(), uuid4()
    link.answers = [
        RequestStatus(identity, "requested"),
        RequestStatus(identity, "running", run_id=run),
        RequestStatus(identity, "succeeded", run_id=run, result=7),
    ]
    requested = handle(link)
    assert (requested.state, requested.finished, requested.id) == ("requested", False, identity)
    assert requested.wait(20).succeeded and requested.result == 7 and requested.run_id == run
    assert repr(requested) == f"RequestedRun('{identity}', 'succeeded')"


def test_waiting_has_an_end(link: FakeLink) -> None:
    with pytest.raises(TimeoutError, match="is requested after"):
        handle(link).wait(0.05)


def test_a_platform_that_is_away_is_waited_for_as_long(link: FakeLink) -> None:
    requested = handle(link)
    link.raises = PlatformAway("away")

    def come_back() -> None:
        link.answers, link.raises = [RequestStatus(requested.id, "dead")], None

    threading.Timer(0.2, come_back).start()
    assert requested.wait(20).state == "dead"
    link.raises = PlatformAway("away")
    with pytest.raises(PlatformAway):
        handle_of(requested, link).wait(0.05)


def handle_of(requested: RequestedRun, link: FakeLink) -> RequestedRun:
    return RequestedRun(lambda: link, RequestStatus(requested.id, "running"))


def test_a_refusal_ends_the_waiting(link: FakeLink) -> None:
    requested = handle(link)
    link.raises = PlatformRefused("no")
    with pytest.raises(PlatformRefused):
        requested.wait(20)


def test_cancel_says_the_state_after_it(link: FakeLink) -> None:
    requested = handle(link)
    assert requested.cancel().state == "cancelled" and link.cancelled == [requested.id]


def test_another_process_finds_it_by_its_id(keeper: Beatkeeper, link: FakeLink) -> None:
    identity = uuid4()
    link.answers = [RequestStatus(identity, "running", key="k", at=AT)]
    found = keeper.requested(str(identity))
    assert (found.id, found.key, found.at, found.state) == (identity, "k", AT, "running")


def test_without_a_platform_named_it_says_what_to_name(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "BEATKEEPER_DATABASE_URL", "BEATKEEPER_URL"):
        monkeypatch.delenv(name, raising=False)
    keeper = Beatkeeper(app)
    task: Any = keeper.job()(app.task(shared=False, name="shop.settle")(nothing))
    with pytest.raises(ValueError, match="url=…, api_key=…"):
        of(task).run_now()


@pytest.mark.parametrize("away", ["postgresql://nobody@127.0.0.1:1/none", "https://bk_key@127.0.0.1:1"])
def test_a_platform_that_is_not_there_is_one_error(app: Celery, away: str) -> None:
    keeper = Beatkeeper(app, ledger=away, tenant="acme", pool="payments", request_seconds=10)
    task: Any = keeper.job()(app.task(shared=False, name="shop.settle")(nothing))
    asks: list[Callable[[], Any]] = [of(task).run_now, lambda: of(task).schedule(at=AT + timedelta(days=1))]
    for ask in asks:
        with pytest.raises(PlatformAway):
            ask()

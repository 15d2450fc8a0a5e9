"""What only the ledger over HTTPS has to hold: whose key it is, answers that are lost, logs that are brought."""

import gzip
import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from jobs.access import api_keys
from jobs.models import ApiKey, Job, Pool, Role
from runs import logs as run_logs
from runs.ledger.remote import MAX_TARGETS, MAX_TARGETS_IN_ALL, MAX_WORKERS
from runs.models import Attempt, LiveRun, Run, WorkerNode
from runs.states import LiveState
from scheduler_project.sdk.errors import KeyRefused, LedgerRefused, LedgerUnavailable
from scheduler_project.sdk.ledger import https, open_ledger, wire
from scheduler_project.sdk.ledger.https import HttpsLedger, read_address, remote_ledger_url
from scheduler_project.sdk.ledger.interface import (
    ALL_TENANTS,
    MAX_HELD,
    MAX_SLOTS,
    MAX_STOPPING,
    Beat,
    Claim,
    ClaimRequest,
    CompletedClaim,
    Ledger,
    WorkerInfo,
    WorkQueue,
    base_token,
    given_back,
)
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.logs.remote import HERE, RemoteLogStore
from scheduler_project.sdk.outcomes import LogPointer, Outcome
from scheduler_project.sdk.transport.http import BASE, TransportReply, is_quiet
from tests.races.staging import dsn
from tests.runs.ledger.claims import SUCCESS, succeeded, tell
from tests.support.api_client import Caller, refusal
from tests.support.certificates import OwnCA
from tests.support.factories import (
    TASK,
    make_job,
    make_key,
    make_pool,
    make_queue,
    make_run,
    make_tenant,
    make_worker,
    now,
)
from tests.support.live_api import Wire
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Team:
    """A tenant with a pool that it shares with others, a worker's key, and a worker."""

    def __init__(self, pool: Pool | None = None) -> None:
        self.tenant = make_tenant()
        self.pool = pool or make_pool()
        self.job = make_job(self.tenant, self.pool)
        self.key, self.text = make_key(self.tenant, Role.WORKER, pool=self.pool)
        self.info = WorkerInfo(uuid4(), "worker", "", "host", 1, 4, [TASK])
        self.incarnation = self.info.incarnation

    def wanted(self, **fields: Any) -> ClaimRequest:
        queue = WorkQueue(0, self.pool.pk, self.tenant.pk, "")
        return replace(ClaimRequest(self.incarnation, base_token(), queue, [TASK]), **fields)

    def ledger(self, port: int, ca: OwnCA, logs: RemoteLogStore | None = None) -> HttpsLedger:
        return HttpsLedger(remote_ledger_url(f"https://localhost:{port}", self.text, str(ca.ca)), logs)


@pytest.fixture
def team(api_port: int) -> Team:
    return Team()


@pytest.fixture
def ledger(team: Team, api_port: int, own_ca: OwnCA) -> Iterator[HttpsLedger]:
    ledger = team.ledger(api_port, own_ca)
    ledger.register(team.info)
    yield ledger
    ledger.close()


def claimed(ledger: Ledger, team: Team, job: Job | None = None) -> Claim:
    make_run(job or team.job, LiveState.QUEUED)
    [claim] = ledger.claim(team.wanted())
    return claim


# Whose it is.


@pytest.fixture
def stranger(team: Team, ledger: HttpsLedger, api_port: int, own_ca: OwnCA) -> Iterator[HttpsLedger]:
    """Another team's key in the same pool, with a worker of its own."""
    other = Team(team.pool)
    theirs = other.ledger(api_port, own_ca)
    theirs.register(other.info)
    yield theirs
    theirs.close()


def test_a_worker_that_names_another_tenants_queue_gets_its_own(
    team: Team, ledger: HttpsLedger, stranger: HttpsLedger
) -> None:
    theirs = make_run(Job.objects.exclude(pk=team.job.pk).get(), LiveState.QUEUED, rank=1)
    ours = make_run(team.job, LiveState.QUEUED, rank=2)
    queue = WorkQueue(1, theirs.pool_id, theirs.tenant_id, "")
    [claim] = ledger.claim(team.wanted(queue=queue, limit=9))
    assert claim.run_id == ours.run_id
    assert LiveRun.objects.get(pk=theirs.pk).state == LiveState.QUEUED


def test_a_worker_that_asks_for_all_queues_gets_its_own(
    team: Team, ledger: HttpsLedger, stranger: HttpsLedger
) -> None:
    make_run(Job.objects.exclude(pk=team.job.pk).get(), LiveState.QUEUED, rank=1)
    ours = make_run(team.job, LiveState.QUEUED, rank=2)
    queue = WorkQueue(1, ours.pool_id, ALL_TENANTS, "")
    [claim] = ledger.claim(team.wanted(queue=queue, limit=9))
    assert claim.run_id == ours.run_id


@pytest.mark.parametrize("named", ["all queues", "another's"])
def test_what_it_claims_with_a_report_is_its_own(
    team: Team, ledger: HttpsLedger, stranger: HttpsLedger, named: str
) -> None:
    theirs = make_run(Job.objects.exclude(pk=team.job.pk).get(), LiveState.QUEUED, rank=1)
    ended = CompletedClaim(claimed(ledger, team), succeeded(), SUCCESS)
    ours = make_run(team.job, LiveState.QUEUED, rank=2)
    tenant = ALL_TENANTS if named == "all queues" else theirs.tenant_id
    lengths = {str(theirs.tenant_id): 1, str(team.tenant.pk): 1}
    queue = WorkQueue(1, ours.pool_id, tenant, "")
    result = ledger.report([ended], team.wanted(queue=queue, limit=9, expected_ms=lengths))
    assert [(claim.run_id, claim.tenant_id) for claim in result.claims] == [(ours.pk, team.tenant.pk)]
    assert LiveRun.objects.get(pk=theirs.pk).state == LiveState.QUEUED


def test_anothers_claims_asked_again_by_their_tokens_are_not_found(team: Team, ledger: HttpsLedger) -> None:
    """Also those of a worker of the platform, whose claims are of all tenants, and in its name."""
    platforms = make_worker(team.pool, slots=1)
    other = make_job(make_tenant(), team.pool)
    for job in (team.job, other):
        make_run(job, LiveState.QUEUED)
    everything = WorkQueue(0, team.pool.pk, ALL_TENANTS, "")
    request = ClaimRequest(platforms.incarnation, base_token(), everything, [TASK], 2)
    with closing(PostgresLedger(dsn())) as own:
        claims = own.claim(request)
    assert len(claims) == 2
    for incarnation in (team.incarnation, platforms.incarnation):
        assert ledger.claim(replace(request, incarnation=incarnation), again=True) == []
    running = LiveRun.objects.filter(worker=platforms.incarnation, state=LiveState.RUNNING)
    assert running.count() == 2


def test_only_the_length_of_its_own_runs_counts_within_bounds(team: Team, ledger: HttpsLedger) -> None:
    own = str(team.tenant.pk)
    for expected, taken in (({"0": 1}, 1), ({own: 10**12}, 1), ({own: -5}, 4), (None, 3)):
        for _ in range(9):
            make_run(team.job, LiveState.QUEUED)
        assert (
            len(ledger.claim(team.wanted(limit=taken if expected is None else 4, expected_ms=expected)))
            == taken
        )
        LiveRun.objects.filter(state=LiveState.QUEUED).delete()


def test_anothers_incarnation_is_answered_as_one_that_never_was(
    team: Team, ledger: HttpsLedger, stranger: HttpsLedger
) -> None:
    claim = claimed(ledger, team)
    make_run(team.job, LiveState.QUEUED)
    for incarnation in (team.incarnation, uuid4()):
        assert not stranger.heartbeat(beat(incarnation)).known
        assert stranger.claim(team.wanted(incarnation=incarnation)) == []
        assert (
            stranger.claim(replace(team.wanted(), token=claim.token, incarnation=incarnation), again=True)
            == []
        )
        assert tell(stranger, replace(claim, incarnation=incarnation), succeeded(), SUCCESS) is None
        assert stranger.report([given_back(replace(claim, incarnation=incarnation))]).states[0] is None
        stranger.leave(incarnation)
    with pytest.raises(LedgerRefused) as of_another:
        stranger.keep_log(claim.run_id, claim.claim_seq, team.incarnation, gzip.compress(b"x"))
    with pytest.raises(LedgerRefused) as of_nobody:
        stranger.keep_log(uuid4(), 1, uuid4(), gzip.compress(b"x"))
    assert str(of_another.value) == str(of_nobody.value)
    live = LiveRun.objects.get(pk=claim.run_id)
    assert (live.state, live.worker) == (LiveState.RUNNING, team.incarnation)
    assert WorkerNode.objects.get(pk=team.incarnation).state == "active"


def test_nobody_begins_anew_as_anothers_incarnation(
    team: Team, ledger: HttpsLedger, stranger: HttpsLedger
) -> None:
    with pytest.raises(LedgerRefused, match="incarnation is another worker's"):
        stranger.register(team.info)
    assert WorkerNode.objects.get(pk=team.incarnation).tenant == team.tenant


def test_a_worker_learns_of_its_own_tenants_queue_alone(
    team: Team, ledger: HttpsLedger, stranger: HttpsLedger
) -> None:
    for job in Job.objects.all():
        make_queue(job)
        make_run(job, LiveState.QUEUED, queued_at=now() - timedelta(seconds=9))
    answer = ledger.heartbeat(beat(team.incarnation))
    assert {queue.tenant_id for queue in [*answer.queues, *answer.work]} == {team.tenant.pk}
    assert {queue.tenant_id for queue in ledger.register(team.info)} == {team.tenant.pk}


def test_a_report_that_names_another_job_moves_that_one_not(team: Team, ledger: HttpsLedger) -> None:
    gated = make_job(max_concurrency=1)
    waiting = make_run(gated, LiveState.BLOCKED, reason="concurrency")
    claim = claimed(ledger, team)
    forged = replace(claim, job_id=gated.pk, gated=True)
    assert tell(ledger, forged, succeeded(), SUCCESS) == "succeeded"
    assert LiveRun.objects.get(pk=waiting.pk).state == LiveState.BLOCKED


def test_names_of_other_pools_and_tenants_are_refused_alike(team: Team, ledger: HttpsLedger) -> None:
    other = make_pool()
    for name in (other.slug, "nowhere"):
        with pytest.raises(LedgerRefused, match=f"is for the pool '{team.pool.slug}'"):
            ledger.register(replace(team.info, incarnation=uuid4(), pool=name))
    for name in (make_tenant().slug, "nobody"):
        with pytest.raises(LedgerRefused, match=f"of the tenant '{team.tenant.slug}'"):
            ledger.declare("", name, [])
    ledger.declare("", "", [{"name": "ours", "schedule": None}])
    assert list(team.tenant.declaration_set.values_list("name", flat=True)) == ["ours"]


def test_no_other_key_speaks_the_workers_protocol(team: Team) -> None:
    paths = ["register", "heartbeat", "claim", "report", "leave", "declare", "declaration-errors"]
    for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN):
        caller = Caller(team.tenant, role)
        for path in paths:
            assert "role worker" in refusal(caller.post(f"worker/{path}", {}), 403)["detail"]


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_key_that_is_over_is_refused_at_the_next_request(team: Team, ledger: HttpsLedger, how: str) -> None:
    assert ledger.heartbeat(beat(team.incarnation)).known
    if how == "revoked":
        api_keys.revoke_key(team.key)
    else:
        ApiKey.objects.filter(pk=team.key.pk).update(expires_at=now() - timedelta(seconds=1))
    with pytest.raises(KeyRefused, match="the key is wrong, expired or revoked"):
        ledger.heartbeat(beat(team.incarnation, number=2))
    with pytest.raises(KeyRefused):
        ledger.claim(team.wanted())


def test_a_pool_that_is_closed_to_a_team_takes_none_of_its_workers(team: Team, ledger: HttpsLedger) -> None:
    Pool.objects.update(shared=False)
    with pytest.raises(LedgerRefused, match="no longer open"):
        ledger.register(replace(team.info, incarnation=uuid4()))


# Answers that are lost.


@pytest.fixture
def cut(api_port: int) -> Iterator[Wire]:
    cut = Wire(api_port)
    yield cut
    cut.close()


@pytest.fixture
def over_a_wire(team: Team, cut: Wire, own_ca: OwnCA) -> Iterator[HttpsLedger]:
    ledger = team.ledger(cut.port, own_ca)
    ledger.register(team.info)
    yield ledger
    ledger.close()


def test_a_claim_whose_answer_was_lost_is_there_when_repeated(
    team: Team, cut: Wire, over_a_wire: HttpsLedger
) -> None:
    # A slot takes its share of what is queued.
    for _ in range(12):
        make_run(team.job, LiveState.QUEUED)
    wanted = team.wanted(limit=2)
    cut.lose_the_next_answer()
    with pytest.raises(LedgerUnavailable):
        over_a_wire.claim(wanted)
    assert cut.lost.is_set()
    claims = over_a_wire.claim(wanted, again=True)
    assert [claim.token for claim in claims] == wanted.tokens
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 2
    assert {claim.claim_seq for claim in claims} == {1}


def test_a_report_whose_answer_was_lost_counts_once_and_its_log_is_stored_once(
    team: Team, cut: Wire, over_a_wire: HttpsLedger, tmp_path: Path
) -> None:
    claim = claimed(over_a_wire, team)
    logs = RemoteLogStore(tmp_path / "worker")
    over_a_wire._logs = logs
    write(logs, claim, "one line")
    outcome = replace(succeeded(), log=HERE)
    cut.lose_the_next_answer()
    with pytest.raises(LedgerUnavailable):
        over_a_wire.report([CompletedClaim(claim, outcome, SUCCESS)])
    assert over_a_wire.report([CompletedClaim(claim, outcome, SUCCESS)]).states == ["succeeded"]
    attempt = Attempt.objects.get()
    assert log_of(attempt) == ["one line"]
    [stored] = (tmp_path / "logs" / "logs").rglob("*.gz")
    assert stored.stat().st_size == attempt.log_length


def test_a_report_with_a_claim_request_whose_answer_was_lost_gives_both_when_repeated(
    team: Team, cut: Wire, over_a_wire: HttpsLedger
) -> None:
    claim = claimed(over_a_wire, team)
    make_run(team.job, LiveState.QUEUED)
    wanted = team.wanted()
    cut.lose_the_next_answer()
    with pytest.raises(LedgerUnavailable):
        over_a_wire.report([CompletedClaim(claim, succeeded(), SUCCESS)], wanted)
    assert over_a_wire.report([CompletedClaim(claim, succeeded(), SUCCESS)]).states == ["succeeded"]
    [next_claim] = over_a_wire.claim(wanted, again=True)
    assert next_claim.token == wanted.token and next_claim.run_id != claim.run_id


def test_a_claim_is_not_repeated_behind_the_callers_back(
    team: Team, cut: Wire, over_a_wire: HttpsLedger
) -> None:
    """Only the caller knows that a request is a second one: without `again` it would lose against itself."""
    make_run(team.job, LiveState.QUEUED)
    make_run(team.job, LiveState.QUEUED)
    cut.lose_the_next_answer()
    with pytest.raises(LedgerUnavailable):
        over_a_wire.claim(team.wanted())
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 1


def test_a_connection_is_kept_and_another_process_opens_its_own(
    team: Team, cut: Wire, over_a_wire: HttpsLedger
) -> None:
    for number in (1, 2, 3):
        over_a_wire.heartbeat(beat(team.incarnation, number=number))
    assert cut.connections == 1
    child = os.fork()
    if not child:
        known = over_a_wire.heartbeat(beat(team.incarnation, number=4)).known
        os._exit(0 if known else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cut.connections == 2
    assert over_a_wire.heartbeat(beat(team.incarnation, number=5)).known
    assert cut.connections == 2


def test_a_connection_that_the_server_has_closed_is_found_out_before_anything_is_said(
    team: Team, cut: Wire, over_a_wire: HttpsLedger
) -> None:
    for number in range(5):
        cut.hang_up()
        wait_until(lambda: not any(map(is_quiet, over_a_wire._idle)), what="the end of the connection")
        assert over_a_wire.heartbeat(beat(team.incarnation, number=number + 1)).known
    assert cut.connections == 6


def test_a_platform_that_is_away_or_no_platform_is_unavailable(team: Team, own_ca: OwnCA) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    ledger = team.ledger(port, own_ca)
    with pytest.raises(LedgerUnavailable) as caught:
        ledger.claim(team.wanted())
    address = read_address(remote_ledger_url(ledger.url, team.text))
    assert team.text == address.key not in str(caught.value) + repr(ledger) + repr(address)


def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    team: Team, api_port: int, tmp_path: Path
) -> None:
    for address in (
        remote_ledger_url(f"https://localhost:{api_port}", team.text),
        remote_ledger_url(f"https://localhost:{api_port}", team.text, str(OwnCA.make(tmp_path).ca)),
    ):
        with pytest.raises(LedgerUnavailable, match="not trusted.*BEATKEEPER_CA_FILE"):
            HttpsLedger(address).claim(team.wanted())


def test_a_certificate_of_another_host_is_not_trusted(
    team: Team, api_port: int, own_ca: OwnCA, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _host, *more, **rest: resolve("127.0.0.1", *more, **rest)
    )
    ledger = HttpsLedger(remote_ledger_url(f"https://elsewhere.test:{api_port}", team.text, str(own_ca.ca)))
    with pytest.raises(LedgerUnavailable, match="not trusted"):
        ledger.claim(team.wanted())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://beatkeeper.example.com", "would send the key unencrypted"),
        ("ftp://beatkeeper.example.com", "is not the address of a platform"),
        ("https://", "is not the address of a platform"),
    ],
)
def test_an_address_that_would_betray_the_key_is_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        remote_ledger_url(url, "bk_0123456789ab_" + "x" * 43)


def test_an_address_without_a_key_or_with_a_missing_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without a key"):
        open_ledger("https://beatkeeper.example.com")
    with pytest.raises(ValueError, match="There is no file"):
        open_ledger(f"https://bk_key@beatkeeper.example.com?ca_file={tmp_path}/none.pem")


def test_a_server_that_requests_silence_is_left_alone_for_a_while(
    team: Team, ledger: HttpsLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ledger._error_of(TransportReply(429, "application/problem+json", b"{}", "3"))
    assert isinstance(error, LedgerUnavailable)
    with pytest.raises(LedgerUnavailable, match="requested silence"):
        ledger.heartbeat(beat(team.incarnation))
    monkeypatch.setattr(time, "monotonic", lambda: ledger._silent_until + 0.1)
    assert ledger.heartbeat(beat(team.incarnation)).known


def test_what_may_pass_is_unavailable_and_what_stays_so_is_refused(ledger: HttpsLedger) -> None:
    for status in (408, 429, 500, 502, 503, 504, 522):
        error = ledger._error_of(TransportReply(status, "text/html", b"<p>", ""))
        assert isinstance(error, LedgerUnavailable), status
    for status in (301, 400, 404, 409, 413, 415):
        error = ledger._error_of(TransportReply(status, "text/html", b"<p>", ""))
        assert type(error) is LedgerRefused, status
    assert isinstance(ledger._error_of(TransportReply(401, "text/html", b"<p>", "")), KeyRefused)


# Logs.


def test_a_log_is_read_in_the_api_where_the_platform_put_it(
    team: Team, ledger: HttpsLedger, tmp_path: Path
) -> None:
    claim = claimed(ledger, team)
    member = gzip.compress(line("hello"))
    pointer = ledger.keep_log(claim.run_id, claim.claim_seq, claim.incarnation, member)
    assert ledger.keep_log(claim.run_id, claim.claim_seq, claim.incarnation, member) == pointer
    assert pointer.object.startswith(f"logs/{team.tenant.slug}/") and str(team.incarnation) in pointer.object
    forged = Outcome("succeeded", now(), now(), log=LogPointer("logs/other/x.jsonl.gz", 0, 1))
    tell(ledger, claim, forged, SUCCESS)
    run = Run.objects.get(pk=claim.run_id)
    assert (run.log_object, run.log_offset, run.log_length) == tuple(vars(pointer).values())
    assert Caller(team.tenant).get(f"runs/{run.pk}/log").content == b"hello\n"
    assert not list((tmp_path / "logs" / "open").iterdir())


def test_lines_of_a_running_attempt_are_read_along_and_brought_twice_are_there_once(
    team: Team, ledger: HttpsLedger
) -> None:
    claim = claimed(ledger, team)
    own = (claim.run_id, claim.claim_seq, claim.incarnation)
    first, second = line("one"), line("two")
    assert ledger.append_log(*own, 0, first) == len(first)
    assert ledger.append_log(*own, 0, first + second) == len(first + second)
    assert ledger.append_log(*own, 9999, b"beyond a gap") == len(first + second)
    caller = Caller(team.tenant)
    assert caller.get(f"runs/{claim.run_id}/log").content == b"one\ntwo\n"


def test_a_large_log_goes_by_itself_and_a_small_one_with_the_report(
    team: Team, ledger: HttpsLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = RemoteLogStore(tmp_path / "worker")
    ledger._logs = logs
    monkeypatch.setattr(https, "MAX_INLINE_LOGS", 2000)
    claims = [claimed(ledger, team) for _ in range(2)]
    texts = ["small", os.urandom(3000).hex()]
    for claim, text in zip(claims, texts, strict=True):
        write(logs, claim, text)
    ended = [CompletedClaim(claim, replace(succeeded(), log=HERE), SUCCESS) for claim in claims]
    assert ledger.report(ended).states == ["succeeded", "succeeded"]
    found = {attempt.run_id: log_of(attempt) for attempt in Attempt.objects.all()}
    assert found == {claim.run_id: [text] for claim, text in zip(claims, texts, strict=True)}


def test_what_is_not_one_whole_member_of_a_fair_size_is_refused(team: Team, ledger: HttpsLedger) -> None:
    claim = claimed(ledger, team)
    member = gzip.compress(b"x")
    for wrong, words in (
        (b"", "not one whole"),
        (b"no gzip", "no gzip member"),
        (member * 2, "not one whole"),
        (member[:-3], "not one whole"),
        (gzip.compress(b"\0" * 20_000_000), "unpacks to more"),
        (os.urandom(11_000_000), "the body is over"),
    ):
        with pytest.raises(LedgerRefused, match=words):
            ledger.keep_log(claim.run_id, claim.claim_seq, claim.incarnation, wrong)
    assert run_logs.store().kept(claim.run_id, claim.claim_seq) is None


def test_a_request_without_lines_is_refused(team: Team, ledger: HttpsLedger) -> None:
    claim = claimed(ledger, team)
    with pytest.raises(LedgerRefused, match="there are no lines"):
        ledger.append_log(claim.run_id, claim.claim_seq, claim.incarnation, 0, b"")


def test_a_log_comes_only_from_who_holds_the_claim(team: Team, ledger: HttpsLedger) -> None:
    claim = claimed(ledger, team)
    ledger.report([given_back(claim)])
    for bring in (
        lambda: ledger.keep_log(claim.run_id, claim.claim_seq, claim.incarnation, gzip.compress(b"x")),
        lambda: ledger.append_log(claim.run_id, claim.claim_seq, claim.incarnation, 0, b"x"),
    ):
        with pytest.raises(LedgerRefused, match="no longer"):
            bring()


@pytest.mark.parametrize("large", [False, True])
def test_a_log_store_that_fails_costs_the_log_and_not_the_result(
    team: Team, ledger: HttpsLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    logs = ledger._logs = RemoteLogStore(tmp_path / "worker")
    monkeypatch.setattr(https, "MAX_INLINE_LOGS", 0 if large else 1000)
    claim = claimed(ledger, team)
    write(logs, claim, "one line")
    # Whatever is to lie in this folder of the platform's cannot.
    (tmp_path / "logs").mkdir(exist_ok=True)
    for name in ("open", "logs"):
        (tmp_path / "logs" / name).write_text("no folder")
    assert ledger.report([CompletedClaim(claim, replace(succeeded(), log=HERE), SUCCESS)]).states == [
        "succeeded"
    ]
    assert Run.objects.get(pk=claim.run_id).log_object == ""
    with pytest.raises(LedgerRefused, match="no longer"):
        ledger.append_log(claim.run_id, claim.claim_seq, claim.incarnation, 0, b"x")


# What comes in.


def test_answers_are_kept_by_nobody_on_the_way(team: Team) -> None:
    worker = Caller(team.tenant, Role.WORKER, pool=team.pool)
    for answer in (
        worker.post("worker/claim", wire.packed(wire.ClaimBody(team.wanted()))),
        worker.post("worker/claim", {}),
    ):
        assert answer["Cache-Control"] == "no-store"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("claim", {}, "request"),
    ("claim", {"request": {"limit": 65}}, "request.limit"),
    ("claim", {"request": {"limit": 0}}, "request.limit"),
    ("claim", {"request": {"limit": 1.5}}, "request.limit"),
    ("claim", {"request": {"token": "no"}}, "request.token"),
    ("claim", {"request": {"token": str(UUID(int=255)), "limit": 2}}, "request.token"),
    ("claim", {"request": {"known_targets": ["x"] * 5001}}, "request.known_targets"),
    ("heartbeat", {"held": "all"}, "held"),
    ("heartbeat", {"skew_ms": True}, "skew_ms"),
    ("heartbeat", {"lease": 1}, "lease"),
    ("heartbeat", {"skew_ms": 1e300}, "skew_ms"),
    ("heartbeat", {"skew_ms": -4e11}, "skew_ms"),
    ("heartbeat", {"slots": -1}, "slots"),
    ("heartbeat", {"slots": 2**31 - 1}, "slots"),
    ("heartbeat", {"foreign_busy": -1}, "foreign_busy"),
    ("report", {"ended": [{}]}, "ended[0].run_id"),
    ("report", {"state": "skipped"}, "ended[0].verdict.state"),
    ("report", {"delay": -1}, "ended[0].verdict.delay"),
    ("report", {"delay": 1e9}, "ended[0].verdict.delay"),
    ("report", {"error_class": "mood"}, "ended[0].outcome.error_class"),
    ("report", {"result": "x" * 70_000}, "ended[0].outcome.result"),
    ("report", {"state": "waiting_callback"}, "ended[0].outcome.callback_digest"),
    ("report", {"fingerprint": "f00d&tenant=1"}, "ended[0].outcome.fingerprint"),
    ("report", {"log": "%"}, "ended[0].log"),
    ("report", {"claim_seq": 2**70}, "ended[0].claim_seq"),
    ("report", {"exit_code": 2**40}, ""),
    ("register", {"slots": 0}, "slots"),
    ("register", {"lease": 0.1}, "lease"),
    ("register", {"name": "w\x1b[31mRED"}, "name"),
    ("register", {"host": "a\nb"}, "host"),
    ("register", {"known_targets": ["a", "b\n"]}, "known_targets"),
    ("declare", {"declarations": [{"name": "a\nb"}]}, "declarations[0].name"),
]


def test_a_bad_request_names_its_field(team: Team, ledger: HttpsLedger) -> None:
    worker = Caller(team.tenant, Role.WORKER, pool=team.pool)
    claim = claimed(ledger, team)
    for path, change, field in WRONG:
        problem = refusal(worker.post(f"worker/{path}", body_of(path, team, claim, change)), 400)
        assert (problem["field"] or "") == field, (path, change, problem)
    assert LiveRun.objects.get(pk=claim.run_id).state == LiveState.RUNNING


def body_of(path: str, team: Team, claim: Claim, change: dict[str, Any]) -> dict[str, Any]:
    """Make a good request with one change."""
    if path == "claim":
        sent: dict[str, Any] = wire.packed(wire.ClaimBody(team.wanted()))
        return {"request": {**sent["request"], **change["request"]}} if change else {}
    if path == "heartbeat":
        return {**wire.packed(beat(team.incarnation)), **change}
    if path == "declare":
        return {"pool": "", "tenant": "", **change}
    if path == "register":
        return {**wire.packed(replace(team.info, incarnation=uuid4())), **change}
    if "ended" in change:
        return change
    end: dict[str, Any] = wire.packed(wire.end_of(CompletedClaim(claim, succeeded(), SUCCESS)))
    part = next(part for part in (end, end["verdict"], end["outcome"]) if change.keys() <= part.keys())
    part.update(change)
    return {"ended": [end]}


def test_a_body_beyond_all_measure_is_refused(team: Team, ledger: HttpsLedger) -> None:
    worker = Caller(team.tenant, Role.WORKER, pool=team.pool)
    refusal(worker.post("worker/claim", {"request": "x" * 1_100_000}), 413)


def test_the_largest_worker_that_may_register_is_served_with_all_it_may_have(
    team: Team, ledger: HttpsLedger
) -> None:
    ledger.register(replace(team.info, incarnation=uuid4(), slots=MAX_SLOTS))
    held = [uuid4() for _ in range(MAX_HELD)]
    full = replace(beat(team.incarnation), slots=MAX_SLOTS, held=held, stopping=held[:MAX_STOPPING])
    assert ledger.heartbeat(full).known
    with pytest.raises(LedgerRefused, match=f"{MAX_SLOTS + 1} slots are out of range"):
        ledger.register(replace(team.info, incarnation=uuid4(), slots=MAX_SLOTS + 1))


def crowd(team: Team, count: int, **fields: Any) -> None:
    for _ in range(count):
        make_worker(team.pool, **{"tenant": team.tenant, **fields})


def asked_to_register(team: Team, **fields: Any) -> Any:
    info = replace(team.info, **{"incarnation": uuid4(), **fields})
    return Caller(team.tenant, Role.WORKER, pool=team.pool).post("worker/register", wire.packed(info))


def test_workers_of_a_key_are_no_more_than_a_pass_can_look_at(team: Team) -> None:
    crowd(team, MAX_WORKERS - 1, known_targets=[])
    assert asked_to_register(team, incarnation=team.incarnation).status_code == 200
    problem = refusal(asked_to_register(team), 409)
    assert f"{MAX_WORKERS} workers in the pool {team.pool}" in problem["detail"]
    assert "more slots" in problem["hint"]
    assert asked_to_register(team, incarnation=team.incarnation).status_code == 200, "its answer was lost"
    assert asked_to_register(Team(team.pool)).status_code == 200, "another team's"
    elsewhere = Caller(team.tenant, Role.WORKER, pool=make_pool())
    info = replace(team.info, incarnation=uuid4())
    assert elsewhere.post("worker/register", wire.packed(info)).status_code == 200


def test_all_that_workers_of_a_key_know_is_no_more_than_a_pass_can_look_at(team: Team) -> None:
    crowd(team, MAX_TARGETS_IN_ALL // MAX_TARGETS, known_targets=["x"] * MAX_TARGETS)
    problem = refusal(asked_to_register(team), 409)
    assert f"{MAX_TARGETS_IN_ALL + 1} targets" in problem["detail"]
    assert asked_to_register(team, known_targets=[]).status_code == 200


def test_who_died_keeps_nobodys_place_beyond_its_lease(team: Team) -> None:
    died = {"last_beat_at": now() - timedelta(seconds=31), "known_targets": []}
    crowd(team, MAX_WORKERS, **died)
    crowd(team, MAX_WORKERS, known_targets=[], state="left")
    assert asked_to_register(team).status_code == 200


def test_who_died_with_a_long_lease_keeps_no_place_of_those_with_a_short_one(team: Team) -> None:
    """A worker that crashes every few seconds, with a lease of an hour."""
    crowd(team, MAX_WORKERS, known_targets=[], lease_seconds=3600)
    assert "60 s" in refusal(asked_to_register(team, lease=61.0), 409)["hint"]
    assert asked_to_register(team, lease=60.0).status_code == 200


def test_a_heartbeat_makes_no_long_lease_of_a_short_one_nor_the_reverse(
    team: Team, ledger: HttpsLedger
) -> None:
    """They are counted apart, and a worker that registers may be counted once."""
    for number, lease in enumerate([60.0, 30.0, 2.0], start=1):
        assert ledger.heartbeat(replace(beat(team.incarnation, number), lease=lease)).quiet == 0
    with pytest.raises(LedgerRefused, match="the worker has a lease of 2 s"):
        ledger.heartbeat(replace(beat(team.incarnation, 4), lease=61.0))
    long = replace(team.info, incarnation=uuid4(), lease=3600.0)
    ledger.register(long)
    assert ledger.heartbeat(replace(beat(long.incarnation), lease=3600.0)).known
    for lease, refusal_of_it in ((60.0, "announce one of 3600 to 3600"), (3601.0, "out of range")):
        with pytest.raises(LedgerRefused, match=refusal_of_it):
            ledger.heartbeat(replace(beat(long.incarnation, 2), lease=lease))


def test_an_idle_worker_is_told_how_long_it_may_be_silent(team: Team, ledger: HttpsLedger) -> None:
    crowd(team, 19)
    assert ledger.heartbeat(replace(beat(team.incarnation), idle=True)).quiet == 1.0


def test_a_field_that_is_not_known_yet_is_left_alone(team: Team, ledger: HttpsLedger) -> None:
    worker = Caller(team.tenant, Role.WORKER, pool=team.pool)
    body = {**wire.packed(beat(team.incarnation)), "mood": "good"}
    assert worker.post("worker/heartbeat", body).status_code == 200


def test_what_is_not_tls_gets_no_answer(api_port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api_port, timeout=10)
    with pytest.raises((http.client.HTTPException, OSError, ssl.SSLError)):
        connection.request("POST", f"{BASE}/worker/claim", "{}")
        connection.getresponse()
    connection.close()


def beat(incarnation: UUID, number: int = 1) -> Beat:
    return Beat(incarnation, number, number - 1, 4, 0, 0, [], False)


def line(text: str) -> bytes:
    return json.dumps({"t": "2026-01-01T00:00:00+00:00", "s": "stdout", "l": "", "m": text}).encode() + b"\n"


def write(logs: RemoteLogStore, claim: Claim, text: str) -> None:
    with logs.open(claim.run_id, claim.claim_seq) as file:
        file.write(line(text))


def log_of(attempt: Attempt) -> list[str]:
    assert attempt.log_offset is not None and attempt.log_length is not None
    pointer = LogPointer(attempt.log_object, attempt.log_offset, attempt.log_length)
    return [found.text for found in run_logs.lines(run_logs.store().read(pointer))]

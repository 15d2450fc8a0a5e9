"""Test that a page with a mistake is noticed: a request that is refused, an answer that differs, a curl left out."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.answers import differences
from tests.support.pages import Block, Reader, Step

JOB = '{"id": 7, "name": "report", "tags": ["a", "b"], "at": "2026-11-19T10:00:00.000Z", "end": null}'


@pytest.mark.parametrize(
    "shown",
    [
        JOB,
        '{"id": 7, …}',
        '{"name": "re…", "at": "2026-…Z", …}',
        '{"id": …, "name": …, "tags": […], "at": "…", "end": …}',
        '{"tags": ["a", …], …}',
        '{"name": "…", "tags": ["…", "b"], "end": null, …}',
    ],
)
def test_an_abbreviation_fits_its_answer(shown: str) -> None:
    assert list(differences("json", shown, JOB)) == []


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ('{"id": 8, …}', "answer.id: 8 is shown, 7 was answered"),
        ('{"id": "7", …}', "answer.id: '7' is shown, 7 was answered"),
        ('{"id": true, …}', "answer.id: True is shown, 7 was answered"),
        ('{"ident": …, …}', "answer.ident was not answered"),
        ('{"end": "…", …}', "answer.end: '…' is shown, None was answered"),
        ('{"id": 7, "name": "report", "tags": ["a", "b"], "end": null}', "answer.at is not shown"),
        ('{"tags": ["a"], …}', "answer.tags: 1 items are shown, 2 were answered"),
        ('{"tags": ["a", "b", "c", …], …}', "answer.tags: 3 items are shown, 2 were answered"),
        ('{"tags": ["a", "c"], …}', "answer.tags[1]: 'c' is shown, 'b' was answered"),
    ],
)
def test_a_difference_is_named(shown: str, said: str) -> None:
    assert list(differences("json", shown, JOB)) == [said]


def test_status_and_headers_are_compared_as_well() -> None:
    real = 'HTTP/1.1 201 Created\r\nserver: x\r\netag: "1"\r\n\r\n{"id": 7}'
    assert list(differences("http", 'HTTP/1.1 201 Created\nETag: "…"\n\n{"id": 7}', real)) == []
    assert list(differences("http", "HTTP/1.1 201 Created\n…", real)) == []
    assert list(differences("http", "HTTP/1.1 200 OK", real)) == ["'HTTP/1.1 200 OK' is shown"]
    assert list(differences("http", "HTTP/1.1 201 Created\nAge: 1", real)) == ["the header 'Age: 1' is shown"]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Read pages whose requests are answered by themselves: `/404` by 404."""
    server = HTTPServer(("127.0.0.1", 0), Echo)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    reader = Reader(tmp_path, API=f"http://127.0.0.1:{server.server_port}")
    reader.patience = 0
    yield reader
    server.shutdown()
    server.server_close()
    thread.join()


class Echo(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        status = int(self.path.strip("/"))
        body = b'{"status": %d}' % status
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Nobody reads along."""


@pytest.mark.servers
def test_a_page_that_is_right_is_followed_and_its_variables_last(reader: Reader) -> None:
    reader.follow(
        [
            step(
                'curl -s -X POST "$API/201" | tee it.json\nSTATUS=$(cut -c 12-14 it.json)', '{"status": 201}'
            ),
            step('curl -s -X POST "$API/$STATUS"', '{"status": …}'),
            step('curl -s -X POST "$API/404"', '{"status": 404}'),
        ]
    )


@pytest.mark.servers
@pytest.mark.parametrize(
    ("commands", "answer", "said"),
    [
        ('curl -s -X POST "$API/404"', "{…}", "POST was answered with 404"),
        ('curl -s -X POST "$API/404"', None, "POST was answered with 404"),
        ('curl -s -X POST "$API/200"', '{"status": 201}', "answer.status: 201 is shown, 200 was answered"),
        ('curl -s -X POST "$API/200"', '{"status": 404}', "nothing was answered with 404"),
        ('if false; then curl -s -X POST "$API/200"; fi', None, "1 of 1 curls were not executed"),
        ('curl -s -X POST "$NOWHERE/200"', None, "NOWHERE: unbound variable"),
    ],
)
def test_a_page_with_a_mistake_is_refused(
    reader: Reader, commands: str, answer: str | None, said: str
) -> None:
    with pytest.raises(pytest.fail.Exception, match=said):
        reader.take(step(commands, answer))


def step(commands: str, answer: str | None) -> Step:
    page = Path(__file__)
    return Step(Block(page, 1, "sh", commands), answer and Block(page, 2, "json", answer) or None)

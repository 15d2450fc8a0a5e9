"""One rule decides by a name whether its value is secret; the API, the audit log and run logs follow it."""

import pytest

from scheduler_project.sdk.secret_values.names import is_secret_name, secret_values_of


@pytest.mark.parametrize(
    "name",
    [
        *("DB_PASS", "DB_PWD", "DATABASE_DSN", "JWT", "SESSION", "PASSPHRASE", "BEARER", "AUTH", "SIGNATURE"),
        *(
            "PGPASSWORD",
            "ACCESSTOKEN",
            "clientSecret",
            "X-Api-Key",
            "sshKey",
            "SSH_KEY",
            "SSHKEY",
            "ENCRYPTION_KEYS",
        ),
        *("Authorization", "Proxy-Authorization", "Set-Cookie", "cookies", "AWS_CREDENTIALS"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("monkey", "donkeys", "turkey", "hockey", "jockeys", "whiskey", "keyboard", "keynote"),
        *(
            "author",
            "tokenizer",
            "tokenises",
            "compass",
            "passenger",
            "sessions_open",
            "X-Request-Id",
            "Accept",
            "",
        ),
    ],
)
def test_harmless_names(name: str) -> None:
    assert not is_secret_name(name)


def test_the_values_of_a_target_are_found_whole_and_word_by_word() -> None:
    target = {
        "env": {"DB_PASS": "hush", "PLACE": "Berlin", "PORT": 5432},
        "headers": {"Authorization": "Bearer abcdef"},
        "argv": ["--password", "in-the-open"],
    }
    assert secret_values_of(target) == ["hush", "hush", "Bearer abcdef", "Bearer", "abcdef"]
    assert secret_values_of({"env": None}) == []


@pytest.mark.parametrize("name", ["TLS_KEYSTORE", "KEYFILE", "TOKENISSUER", "tokenizer", "X-Keyset"])
def test_a_log_masks_more_names_than_the_api(name: str) -> None:
    assert not is_secret_name(name) and secret_values_of({"env": {name: "hush"}}) == ["hush", "hush"]

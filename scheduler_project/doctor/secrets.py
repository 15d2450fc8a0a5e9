"""Check the keys of the tenants' secrets: one encrypts new secrets, and each stored one has a key that decrypts it."""

from jobs.secrets import service as tenant_secrets
from scheduler_project.doctor.findings import Findings, counted, fine, note, problem

LOST = "put the key that is missing back, behind the others; without it give these secrets new values"


def keys() -> Findings:
    known = tenant_secrets.box().key_ids
    kept = dict(tenant_secrets.counts_by_key())
    lost = sum(count for identity, count in kept.items() if identity not in known)
    old = sum(count for identity, count in kept.items() if identity in known[1:])
    if not known and lost:
        yield problem(f"{counted(lost, 'secret')} and no key: ENCRYPTION_KEYS is not set", LOST)
    elif not known:
        yield note(
            "ENCRYPTION_KEYS is not set: no tenant can keep a secret",
            "make a key as docs/operations/secrets.md says",
        )
    elif lost:
        ids = ", ".join(sorted(set(kept) - set(known)))
        yield problem(f"no key of ENCRYPTION_KEYS opens {counted(lost, 'secret')} (keys {ids})", LOST)
    if old:
        yield note(
            f"{counted(old, 'secret is', 'secrets are')} encrypted with an older key of ENCRYPTION_KEYS",
            "run `manage.py secrets rotate` before you take that key away",
        )
    if known and not lost and not old:
        yield fine(f"{counted(sum(kept.values()), 'secret')}, all encrypted with the first key")

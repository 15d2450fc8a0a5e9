"""The jobs that the code base declares, sent to the platform once when its worker starts."""

from __future__ import annotations

import logging
import threading
import time

from ..declarations.plan import plan, summary
from ..errors import LedgerRefused
from ..host import open_link
from ..ledger.interface import Ledger
from ..shared.folder import Config

logger = logging.getLogger(__name__)

# The platform has looked at declared jobs by then.
REFUSALS_AFTER_SECONDS = 20.0
PLAN_SECONDS = 5.0


class StartDeclarations:
    """Declare after a beat, by a step that never waits: the next beat must not be late."""

    def __init__(self, config: Config, ledger: Ledger) -> None:
        self._config, self._ledger = config, ledger
        self._declared = not config.declarations
        self._comparison: threading.Thread | None = None
        self._look_for_refusals_at = 0.0

    def step(self) -> None:
        if not self._declared:
            self._declare()
        elif self._look_for_refusals_at and time.monotonic() >= self._look_for_refusals_at:
            self._look_for_refusals_at = 0.0
            names = [str(declared["name"]) for declared in self._config.declarations]
            for name, error in self._ledger.declaration_errors(self._config.tenant, names).items():
                logger.error("The declared job %s was refused: %s", name, error)

    def _declare(self) -> None:
        # Compared before anything is declared, or there would be no difference to log; in a thread of its own,
        # since it connects to the platform by itself.
        if self._comparison is None:
            self._comparison = threading.Thread(target=self._log_plan, daemon=True)
            self._comparison.start()
        if self._comparison.is_alive():
            return
        try:
            self._ledger.declare(self._config.pool, self._config.tenant, self._config.declarations)
            self._look_for_refusals_at = time.monotonic() + REFUSALS_AFTER_SECONDS
        except LedgerRefused as refusal:
            logger.error("The declared jobs were refused: %s", refusal)
        self._declared = True

    def _log_plan(self) -> None:
        """Log what declaring will change, and what differs that it will not change."""
        config = self._config
        try:
            link = open_link(config.ledger_url, config.tenant, config.pool, PLAN_SECONDS)
            source = str(config.declarations[0].get("source", ""))
            changes = plan(config.declarations, link.declared(), pool=config.pool, source=source)
        except Exception as error:
            logger.debug("The declared jobs cannot be compared: %s", error)
            return
        lines = [line for change in changes if change.notable for line in change.lines()]
        logger.info("Declared jobs: %s", "\n".join([summary(changes), *lines]))

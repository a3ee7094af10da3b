"""Takes over a changed configuration while the agent runs: on SIGHUP, on `nvcre-agent reload`, when the file changes.

All or nothing: what is wrong is told with key and place, and the old configuration stays. What may change live is
applied; what else differs is named as needing a restart. Which is which says config.py.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nvcre_agent import config as configuration
from nvcre_agent import named_files
from nvcre_agent.config import Config, ConfigError
from nvcre_agent.kernel.growth import DirectoryChanges

log = logging.getLogger(__name__)

SETTLE_S = 0.5  # a file is written in several steps, and signals may come by the thousand
_MOUNTED = "..data"  # the link that kubelet swaps when a mounted ConfigMap changes


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the start or of the last reload."""

    at_s: float
    problems: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()

    @property
    def success(self) -> bool:
        return not self.problems


class Reloader:
    """`running` is the configuration in force; `apply` puts the live settings of a new one into force."""

    def __init__(self, config: Config, reread: Callable[[], Config], apply: Callable[[Config], None]) -> None:
        self.running = config
        self.outcome = Outcome(time.time())
        self._reread = reread
        self._apply = apply
        self._changes: DirectoryChanges | None = None
        self._pending: asyncio.TimerHandle | None = None

    def reload(self) -> Outcome:
        try:
            wanted = self._reread()
            read = named_files.read(wanted.xid_catalogue, wanted.limits)
        except ConfigError as error:
            self.outcome = Outcome(time.time(), problems=tuple(map(str, error.problems)))
        else:
            read.use()
            changed, needs_restart = configuration.differences(self.running, wanted)
            self.running = configuration.keeping(self.running, wanted)
            self._apply(self.running)
            self.outcome = Outcome(time.time(), (), tuple(changed), tuple(needs_restart))
        self._tell()
        return self.outcome

    def soon(self) -> None:
        """Once for all who ask in the next moment: each reload reads files, in the event loop."""
        if self._pending is None:
            self._pending = asyncio.get_running_loop().call_later(SETTLE_S, self._settled)

    def _settled(self) -> None:
        self._pending = None
        self.reload()

    def watch(self) -> bool:
        """Reload when the file changes; False where it cannot be watched, then only when somebody asks."""
        directory = (self.running.config_file or configuration.DEFAULT_FILE).parent
        self._changes = DirectoryChanges.open(directory)
        if self._changes is None:
            log.info("config not watched directory=%s; `nvcre-agent reload` reads it again", directory)
            return False
        asyncio.get_running_loop().add_reader(self._changes.fd, self._changed)
        return True

    def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
        if self._changes is not None:
            asyncio.get_running_loop().remove_reader(self._changes.fd)
            self._changes.close()
            self._changes = None

    def _changed(self) -> None:
        assert self._changes is not None
        files: tuple[Path | None, ...] = (
            self.running.config_file or configuration.DEFAULT_FILE,
            self.running.xid_catalogue,
            self.running.limits,
        )
        if self._changes.names().isdisjoint({_MOUNTED, *(file.name for file in files if file)}):
            return
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        self.soon()

    def _tell(self) -> None:
        now, file = self.outcome, self.running.config_file
        for problem in now.problems:
            log.error("config refused problem=%r; the old one stays in force", problem)
        if now.success:
            log.info("config reloaded file=%s changed=%s", file or "-", ",".join(now.changed) or "-")
        for name in now.needs_restart:
            log.warning("config change needs a restart setting=%s", name)

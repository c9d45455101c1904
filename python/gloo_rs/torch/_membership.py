"""What groups need for another membership: handles, and the store over which the members meet."""

from __future__ import annotations

import datetime
import json
import uuid
from typing import NamedTuple, Self

import torch.distributed as dist

# The key of what identifies a store.
_IDENTITY = "gloo_rs/identity"


class Handle(NamedTuple):
    """A member, as it tells the others."""

    # The library's handle of its context.
    context: str
    # Which store it has: other members may have the same one under another address.
    store: str
    # Where others reach that store; empty if it is not a TCPStore.
    host: str
    port: int
    group_name: str

    @classmethod
    def of(cls, context: str, store: dist.Store, group_name: str) -> Self:
        base = _base_of(store)
        identity = base.compare_set(_IDENTITY, "", uuid.uuid4().hex).decode()
        host, port = (base.host, base.port) if isinstance(base, dist.TCPStore) else ("", 0)
        return cls(context, identity, host, port, group_name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError if the text is not a handle."""
        try:
            handle = cls(*json.loads(text))
        except (ValueError, TypeError):
            handle = None
        if handle is None or [type(field) for field in handle] != [str, str, str, int, str]:
            raise ValueError(f"{text!r} is not the handle of a group of gloo_rs, as get_reconfigure_handle() returns it")
        return handle

    def __str__(self) -> str:
        return json.dumps(self)

    def meeting_store(self, own: Handle, store: dist.Store, timeout: datetime.timedelta) -> dist.Store:
        """The store over which all members meet whose first one this is. `own` and `store` are this process's."""
        if self.store == own.store:
            base = _base_of(store)
        elif self.host:
            base = dist.TCPStore(self.host, self.port, is_master=False, timeout=timeout, wait_for_workers=False)
        else:
            raise ValueError("the members have different stores: they can meet only if the first one's is a TCPStore")
        # In a group, an id of a change is used once.
        return dist.PrefixStore(f"gloo_rs/reconfigure/{self.group_name}", base)


def _base_of(store: dist.Store) -> dist.Store:
    """The store itself: its prefixes are names of groups and of devices, and may differ among members."""
    return store._underlying_non_prefix_store if isinstance(store, dist.PrefixStore) else store

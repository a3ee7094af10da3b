"""Message sizes as people write them."""

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def show_size(size: int) -> str:
    """`8388608` -> `8 MiB`."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"

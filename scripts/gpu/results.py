"""What peers.py writes: rows of results, each with one of its peers' times. Needs nothing but Python."""


def fastest(row, peer, label=None):
    """The best result of a peer: of several numbers of warps, or copies. label: which library, if the peer is ours."""
    fits = [r for r in row["results"] if r["peer"] == peer and "us" in r and r.get("label", label) == label]
    return min(fits, key=lambda r: r["us"], default=None)


def size(row):
    """Of the operands that differ between the rows of a table: tokens."""
    return row["m"] if "m" in row else row["tokens"]


def place(row):
    """(letter, size) of what they have in common"""
    return (("n", row["n"]), ("k", row["k"])) if "n" in row else (("H", row["hidden"]),)


def groups(rows):
    """The rows of each table; of several of one size the last."""
    tables = {}
    for row in rows:
        key = row["op"], row["variant"], place(row), row["in_place"]
        tables.setdefault(key, {})[size(row)] = row
    return [[table[tokens] for tokens in sorted(table)] for table in tables.values()]


def rates(row, us):
    """[(number, unit)] of what a call got done"""
    if "flops" in row:
        return [(row["flops"] / us / 1e6, "TFLOP/s"), (row["weight_bytes"] / us / 1e6, "TB/s")]
    return [(row["moved_bytes"] / us / 1e3, "GB/s")]

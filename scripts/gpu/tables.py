"""What peers.py prints."""

from .results import fastest, groups, place, rates, size


def time(result):
    return f"{result['us']:.2f}" if result else "-"


def ratio(ours, other, key="us"):
    return f"{ours[key] / other[key]:.3f}" if ours and other and other.get(key) else "-"


def host(result):
    return f"{result['host_us']:.2f}" if result and "host_us" in result else "-"


def rate(row, result, which):
    return f"{rates(row, result['us'])[which][0]:.4g}" if result else "-"


def cells(row, labels):
    """(head of the column, text)"""
    gate = row["op"] == "gated_mla"
    compared, others = (("mm", "read"), ("eager", "compiled")) if gate else (("copy", "triton"), ("torch",))
    best = {peer: fastest(row, peer) for peer in (*compared, *others)}
    units = [unit for _, unit in rates(row, 1)]
    yield "m" if gate else "T", str(size(row))
    for label in labels:
        ours = fastest(row, "gatemix", label)
        yield label, time(ours) if ours else "failed"
        yield from ((f"/{peer}", ratio(ours, best[peer])) for peer in compared)
        yield from ((unit, rate(row, ours, which)) for which, unit in enumerate(units))
        yield "ulps", "/".join(map(str, ours["ulps"])) if ours else "-"
        if gate:
            yield "max/eager", ratio(ours, best["eager"], "max_error")
            yield "mean/eager", ratio(ours, best["eager"], "mean_error")
            yield "host", host(ours)
    for peer, result in best.items():
        yield peer, time(result)
        if peer == compared[0]:
            yield units[0], rate(row, result, 0)
        if peer == "mm":
            yield "host", host(result)
        if peer == "triton":
            yield "warps", str(result["warps"]) if result else "-"


def print_table(rows, labels):
    """One table, and the kernels of ours in it."""
    first = rows[0]
    where = ", ".join(f"{letter} {number}" for letter, number in place(first))
    in_place = ", in place" if first["in_place"] else ""
    print(f"\n{' '.join([first['op'], first['variant']]).strip()}, {where}{in_place} (us a call)")
    lines = [list(cells(row, labels)) for row in rows]
    texts = [[head for head, _ in lines[0]], *([text for _, text in line] for line in lines)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for line in texts:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    kernels = [(size(row), r["label"], r["kernel"]) for row in rows for r in row["results"] if "kernel" in r]
    for label, kernel in dict.fromkeys((label, kernel) for _, label, kernel in kernels):
        sizes = ", ".join(str(n) for n, *which in kernels if which == [label, kernel])
        print(f"  {label}, {lines[0][0][0]} {sizes}: {kernel}")


def print_tables(rows, labels):
    for group in groups(rows):
        print_table(group, labels)

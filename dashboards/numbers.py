"""Numbers as Grafana would write them, by unit."""

import math

_SI = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_SUFFIXES = {"reqps": " req/s", "ops": " ops/s", "h": " h"}
_TIMES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def written(value: float | None, unit: str) -> str:
    """The value in words; empty for what is none."""
    if value is None or math.isnan(value):
        return ""
    if unit == "s":
        return _seconds(value)
    if unit == "percentunit":
        return f"{_plain(value * 100)}%"
    return f"{_plain(value)}{_SUFFIXES.get(unit, '')}"


def _plain(value: float) -> str:
    for size, sign in _SI:
        if abs(value) >= size:
            return f"{_digits(value / size)} {sign}"
    return _digits(value)


def _digits(value: float) -> str:
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _seconds(value: float) -> str:
    for size, sign in _TIMES:
        if abs(value) >= size:
            return f"{_digits(value / size)} {sign}"
    return "0 s"


def ticks(highest: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 up to just above the highest."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough)
    count = math.ceil(highest / step - 1e-9)
    return [step * each for each in range(count + 1)]

"""Text to SI numbers and back."""

from __future__ import annotations

import pytest

from sim_core import SpecError, quantity, short


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("3 s", "s", 3.0),
        ("3 ms", "s", 3e-3),
        ("3.5us", "s", 3.5e-6),
        (" 7  ns ", "s", 7e-9),
        ("2 B", "B", 2.0),
        ("2 kB", "B", 2e3),
        ("2 KB", "B", 2e3),
        ("2 MB", "B", 2e6),
        ("2 GB", "B", 2e9),
        ("2 TB", "B", 2e12),
        ("2 PB", "B", 2e15),
        ("2 KiB", "B", 2048.0),
        ("2 MiB", "B", 2.0**21),
        ("2 GiB", "B", 2.0**31),
        ("2 TiB", "B", 2.0**41),
        ("400 Gb/s", "B/s", 50e9),
        ("8 b/s", "B/s", 1.0),
        ("400 GB/s", "B/s", 400e9),
        ("1 GiB/s", "B/s", 2.0**30),
        *((f"200{text}", "B/s", 25e9) for text in ("Gbps", " Gbit/s", "gbps", " Gbits/s")),
        *((f"25 {text}", "B/s", 25e9) for text in ("GBps", "GBytes/s", "GB/sec", "Gbyte/s")),
        *((f"989 {text}", "FLOP/s", 989e12) for text in ("TFLOPS", "TFLOPs", "TFLOP", "tflops", "Tflop/s", "TFLOPS/s")),
        *((f"3 {text}", "s", 3e-6) for text in ("\u00b5s", "\u03bcs", "usec", "useconds")),
        ("600 seconds", "s", 600.0),
        ("10 min", "s", 600.0),
        ("1.5 h", "s", 5400.0),
        *((f"80 {text}", "B", 80e9) for text in ("gb", "GByte", "Gbytes", "gB")),
        ("80 gib", "B", 80 * 2.0**30),
        ("0", "B/s", 0.0),
        (0, "s", 0.0),
        ("-1.5e3 TFLOP/s", "FLOP/s", -1.5e15),
        (".5", "", 0.5),
        (8, "", 8.0),
        (0.25, "", 0.25),
    ],
)
def test_text_is_read_as_si(value: object, unit: str, expected: float) -> None:
    assert quantity(value, unit) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("value", "unit", "message"),
    [
        (True, "s", "found 'True', expected a number with a unit of s"),
        (None, "", "found 'None', expected a number"),
        ([1], "B", "found '[1]', expected a number with a unit of B"),
        (400, "B/s", "found '400', expected a number with its unit, such as '400 Gb/s'"),
        ("400", "B", "found '400', expected a number with its unit, such as '400 GB'"),
        ("3", "s", "found '3', expected a number with its unit, such as '3 s' or '3 ms' or '3 us'"),
        ("fast", "B/s", "found 'fast', expected a number and a unit of B/s"),
        ("fast", "", "found 'fast', expected a number and a unit of nothing"),
        ("3 ks", "s", "unknown unit 'ks' in '3 ks', nearest valid: s"),
        ("3 mB", "B", "unknown unit 'mB' in '3 mB', nearest valid: "),
        *((f"400 {text}", "B/s", f"unit '{text}': bits or bytes? Expected Gb/s or GB/s") for text in ("gb/s", "GBPS", "GB/S")),
        ("80 Gb", "B", "unknown unit 'Gb' in '80 Gb', nearest valid: "),
        ("8 GPUs", "", "unknown unit 'GPUs' in '8 GPUs', valid: "),
        ("1e999 s", "s", "found inf, expected a finite number"),
        (float("nan"), "", "found nan, expected a finite number"),
    ],
)
def test_what_is_no_quantity_is_refused(value: object, unit: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        quantity(value, unit)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (2.0, "s", "2 s"),
        (1.0, "s", "1 s"),
        (0.5, "s", "500 ms"),
        (1e-3, "s", "1 ms"),
        (-2.5e-6, "s", "-2.5 us"),
        (3e-9, "s", "3 ns"),
        (0.0, "s", "0 ns"),
        (1e15, "B", "1 PB"),
        (3.2e12, "B", "3.2 TB"),
        (1e9, "B", "1 GB"),
        (3.25e6, "B/s", "3.25 MB/s"),
        (-1e3, "B", "-1 kB"),
        (999.0, "B", "999 B"),
        (12345.678, "", "12.35 k"),
        (8.0, "", "8"),
    ],
)
def test_numbers_are_written_short(value: float, unit: str, expected: str) -> None:
    assert short(value, unit) == expected

"""The energy counters of Linux, as files."""

import math
from pathlib import Path

from services.telemetry.energy import EnergyMeter


def write(powercap: Path, zone: str, microjoules: int, most: int = 1_000_000_000) -> None:
    folder = powercap / zone
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")


def packages_alone(powercap: Path) -> EnergyMeter:
    """Returns a meter without GPUs, also on a machine that has some."""
    meter = EnergyMeter(powercap)
    meter._gpus._devices = []
    meter.taken()
    return meter


def test_a_look_tells_the_joules_since_the_one_before(tmp_path: Path):
    write(tmp_path, "intel-rapl:0", 5_000_000)
    write(tmp_path, "intel-rapl:1", 0)
    meter = packages_alone(tmp_path)
    write(tmp_path, "intel-rapl:0", 8_000_000)
    write(tmp_path, "intel-rapl:1", 500_000)
    assert meter.taken() == 3.5
    assert meter.taken() == 0.0


def test_parts_of_a_package_are_not_counted_again(tmp_path: Path):
    for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl-mmio:0"):
        write(tmp_path, zone, 0)
    meter = packages_alone(tmp_path)
    for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl-mmio:0"):
        write(tmp_path, zone, 2_000_000)
    assert meter.taken() == 2.0


def test_the_counter_of_a_whole_laptop_which_includes_its_package_is_left_out(tmp_path: Path):
    names = {"intel-rapl:0": "package-0", "intel-rapl:1": "psys"}
    for zone, name in names.items():
        write(tmp_path, zone, 0)
        (tmp_path / zone / "name").write_text(f"{name}\n")
    meter = packages_alone(tmp_path)
    for zone in names:
        write(tmp_path, zone, 2_000_000)
    assert meter.taken() == 2.0


def test_a_counter_that_starts_again_goes_on(tmp_path: Path):
    write(tmp_path, "intel-rapl:0", 9_000_000, most=10_000_000)
    meter = packages_alone(tmp_path)
    write(tmp_path, "intel-rapl:0", 1_000_000, most=10_000_000)
    assert meter.taken() == 2.0


def test_a_machine_that_tells_nothing_has_no_figure(tmp_path: Path):
    meter = packages_alone(tmp_path)
    assert math.isnan(meter.taken())
    write(tmp_path, "intel-rapl:0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("")
    meter = packages_alone(tmp_path)
    assert math.isnan(meter.taken())

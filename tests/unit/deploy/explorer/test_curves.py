"""The curves of the first page: a long run is drawn, and sent to the page, as few values."""

from typing import Any

from deploy.explorer.drawings import MOST_POINTS, Chart, CurveLine, evaluation_chart, training_charts

LONG = 60_000


def charted(*metrics: list[dict[str, Any]], title: str = "Success of training episodes") -> Chart:
    charts = training_charts([f"run-{i}" for i in range(len(metrics))], metrics)
    return next(chart for chart in charts if chart.subplot.title == title)


def rows(steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "success_rate": step % 7 / 7} for step in range(1, steps + 1)]


def lengths(line: CurveLine) -> list[int]:
    return [len(line.steps), len(line.values), len(line.thin.split()), len(line.thick.split())]


def test_a_long_run_has_few_values_and_its_newest_is_among_them():
    for steps in (MOST_POINTS + 1, LONG - 1, LONG):
        line, = charted(rows(steps)).lines
        assert MOST_POINTS / 2 <= len(line.steps) <= MOST_POINTS + 1
        assert lengths(line) == [len(line.steps)] * 4
        assert (line.steps[-1], line.values[-1]) == (steps, steps % 7 / 7)
        assert charted(rows(steps)).data[0]["steps"] == line.steps


def test_a_short_run_keeps_all_values():
    line, = charted(rows(MOST_POINTS)).lines
    assert lengths(line) == [MOST_POINTS] * 4


def test_runs_of_two_lengths_share_the_steps_that_the_pointer_reads():
    long, short, tiny = charted(rows(LONG), rows(LONG // 3), rows(30)).lines
    assert {step for step in long.steps if step <= LONG // 3} < set(short.steps)
    assert tiny.steps == list(range(1, 31))


def test_a_key_that_few_steps_have_keeps_its_values():
    sparse = [row | {"success_rate": None if row["step"] % 100 else 0.5} for row in rows(LONG)]
    line, = charted(sparse).lines
    assert line.steps == list(range(100, LONG + 1, 100))


def test_the_band_of_one_evaluation_is_as_wide_as_its_line_and_as_high_as_its_interval():
    chart = evaluation_chart(["a"], [[{"label": "step-000000", "step": 0, "split": "valid", "temperature": 1.0,
                                       "success_rate": 0.5, "success_low": 0.0, "success_high": 1.0, "tasks": 1}]])
    assert chart is not None
    line, = chart.lines
    corners = [tuple(map(float, point.split(","))) for point in line.band.split()]
    ends = [float(point.split(",")[0]) for point in line.thick.split()]
    assert corners == [(ends[0], 150.0), (ends[1], 150.0), (ends[1], 8.0), (ends[0], 8.0)]


def test_the_band_of_many_evaluations_has_as_few_points_as_their_line():
    evaluations = [{"label": f"step-{step:06d}", "step": step, "split": "valid", "temperature": 1.0,
                    "success_rate": 0.5, "success_low": 0.4, "success_high": 0.6, "tasks": 9}
                   for step in range(0, LONG, 20)]
    chart = evaluation_chart(["a"], [evaluations])
    assert chart is not None
    line, = chart.lines
    assert len(line.band.split()) == 2 * len(line.steps) <= 2 * (MOST_POINTS + 1)
    assert line.steps[-1] == LONG - 20

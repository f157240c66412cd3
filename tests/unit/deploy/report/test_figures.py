"""The axes of the figures: what the runs did has to fill them, however wide the interval over a few seeds is."""

import numpy as np
import pytest
from PIL import Image

from deploy.report import figures
from deploy.report.tables import Arm, Record

ARM = Arm(title="gagpo", colour="#0072b2", overrides={})


@pytest.fixture
def ax():
    return figures.new_figure()[1][0]


def test_the_axis_of_two_seeds_is_as_long_as_their_curves_and_not_as_their_band(ax):
    """Their interval at step 1 is 0.3 ± 12.7 x 0.2 / 2 and reaches from -1 to 1.6; a share is between 0 and 1."""
    figures._curve(ax, [[0.2, 0.6], [0.4, 0.8]], ARM, "-", "gagpo")
    low, high = ax.get_ylim()
    assert 0.15 < low < 0.2
    assert 0.56 < high < 0.6  # the smoothed second steps are 0.36 and 0.56
    assert [list(line.get_ydata()) for line in ax.lines[1:]] == [
        pytest.approx([0.2, 0.36]), pytest.approx([0.4, 0.56])]


def test_a_run_of_one_step_is_a_point_at_a_whole_step(ax):
    record = Record(arm="gagpo", seed=0, minutes=1.0, curves={"success_rate": [0.1]}, evaluations=[])
    figures._curves(ax, [record], {"gagpo": ARM}, figures.PAPER["success"][0])
    assert {line.get_marker() for line in ax.lines} == {"o"}
    ax.figure.canvas.draw()
    low, high = ax.get_xlim()
    assert [tick for tick in ax.get_xticks() if low <= tick <= high] == [1]


def test_shares_are_in_percent_and_a_legend_lies_below_its_axes(ax):
    record = Record(arm="gagpo", seed=0, minutes=1.0, evaluations=[],
                    curves={"invalid_share": [0.1, 0.3], "cut_share": [0.0, 0.2]})
    figures._curves(ax, [record], {"gagpo": ARM}, figures.FIGURES["actions"][0])
    ax.figure.canvas.draw()
    assert all(label.get_text().endswith("%") for label in ax.get_yticklabels())
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["malformed", "cut at the limit"]
    assert legend.get_window_extent().y1 < ax.get_window_extent().y0


def test_one_seed_shows_its_steps_and_four_show_their_mean_alone(ax):
    figures._curve(ax, [[0.2, 0.6]], ARM, "-", "one")
    assert list(ax.lines[1].get_ydata()) == [0.2, 0.6]
    figures._curve(ax, [[0.2, 0.6]] * 4, ARM, "-", "four")
    assert len(ax.lines) == 3


def test_the_interval_of_held_out_success_ends_at_0_and_1_and_the_title_says_which_it_is(ax):
    figures._heldout(ax, {"gagpo": [0.6, 0.9]}, {"gagpo": ARM}, "held-out (heldout, T=0.4)")
    assert ax.get_title() == "Success, held-out (heldout, T=0.4): runs, mean, 95% interval"
    assert ax.get_xlim() == (-0.02, 1.02)


def test_a_title_beside_long_names_is_whole(ax, tmp_path):
    """Long names leave little room to the axes, over whose middle the title stands: its end was cut off."""
    name = "an estimator with a long name, with admissible actions, nothing changed stays"
    figures._heldout(ax, {name: [0.5, 0.6]}, {name: Arm(title=name, colour="#0072b2", overrides={})}, "held-out")
    ax.figure.set_size_inches(6.2, 3.8)
    pixels = np.asarray(Image.open(figures.save(ax.figure, tmp_path / "heldout.png")).convert("L"))
    for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]):
        assert (edge > 250).all()

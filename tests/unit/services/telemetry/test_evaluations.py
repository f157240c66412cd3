"""The evaluations of a run, told by their labels."""

from services.telemetry.evaluations import TRAINED, curve_label, curve_of, title_of


def test_the_curve_has_the_evaluations_during_training_alone_by_step():
    rows = [{"label": label, "step": step} for label, step in (
        (curve_label(20), 20), ("panel-trained", 30), (curve_label(5), 5), ("panel-cold", 0), ("eval-react", 7))]
    assert [row["step"] for row in curve_of(rows)] == [5, 20]


def test_people_read_titles_in_place_of_labels():
    assert [title_of(label) for label in (curve_label(20), TRAINED, "eval")] == [
        "evaluation at step 20", "held-out games, after RL", "evaluation"]

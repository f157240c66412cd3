"""How many bundles find room, and what a place says while it has none."""

import pytest

from deploy.members.placement import bundle, fitting, lacking, strategy

GPU = bundle(gpus=1)
PAIR = bundle(cpus=1, gpus=2)


def test_a_bundle_asks_for_something_even_where_the_process_asks_for_nothing():
    assert bundle() == {"memory": 1}
    assert bundle(cpus=2, nodes="control") == {"CPU": 2, "control": 0.001}


@pytest.mark.parametrize(("asked", "nodes", "found"), [
    ([GPU] * 4, [{"GPU": 1}, {"GPU": 2}], 3),
    ([PAIR] * 2, [{"CPU": 8, "GPU": 3}, {"CPU": 1, "GPU": 1}], 1),
    ([bundle(cpus=1, nodes="big")], [{"CPU": 9}, {"CPU": 1, "big": 1}], 1),
    ([bundle(cpus=0.1)] * 10, [{"CPU": 1}], 10),
    ([GPU], [], 0),
])
def test_a_bundle_fits_on_one_node_or_nowhere(asked, nodes, found):
    assert fitting(asked, nodes) == found


def test_a_rank_group_shares_a_node_if_one_has_room_for_all_of_it():
    assert strategy([GPU] * 2, [{"GPU": 1}, {"GPU": 2}]) == "STRICT_PACK"
    assert strategy([GPU] * 2, [{"GPU": 1}, {"GPU": 1}]) == "PACK"


@pytest.mark.parametrize(("asked", "free", "total", "said"), [
    ([GPU] * 4, {"GPU": 0}, [{"GPU": 3}], "needs 4 bundles of 1 GPU, and the cluster has 3"),
    ([PAIR], {"CPU": 8}, [{"CPU": 8}], "needs 1 bundle of 1 CPU and 2 GPUs, and the cluster has none"),
    ([bundle(cpus=1, nodes="big")], {"CPU": 8}, [{"CPU": 8}],
     "needs 1 bundle of 1 CPU and a node with big, and the cluster has none"),
    ([GPU] * 2, {"GPU": 1}, [{"GPU": 2}], "needs 2 bundles of 1 GPU, and 1 of the cluster's is free"),
    ([PAIR] * 2, {"CPU": 2, "GPU": 4}, [{"CPU": 4, "GPU": 4}],
     "needs 2 bundles of 1 CPU and 2 GPUs, and 1 of the cluster's is free"),
])
def test_a_place_says_what_the_cluster_lacks(asked, free, total, said):
    assert lacking(asked, free, total) == said

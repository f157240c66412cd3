"""A folder has the digest of the weights that the learner publishes, so an export can replace them."""

import pytest
from learner_tiny import make_config

from learner.trainer import Learner
from services.weights.pack import pack_folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_has_the_digest_of_what_was_published(any_model_path, rank_group, tmp_path, dtype):
    """In both dtypes, tied and untied. The initial policy's folder, stored in float32, has the digest too."""
    config = make_config()
    config = config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})
    learner = Learner(config, any_model_path, rank_group)
    published = learner.pack()
    assert {entry.dtype for entry in published.manifest} == {dtype}
    learner.export(tmp_path)
    assert pack_folder(tmp_path, dtype).digest == published.digest
    assert pack_folder(any_model_path, dtype).digest == published.digest

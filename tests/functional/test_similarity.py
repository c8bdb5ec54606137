import math

import numpy as np
import pytest
import torch

from dfl_lightning.functional import centred_cosines, cosines_from_gram, distances_from_gram


def gram(vectors):
    return vectors @ vectors.T


def some_vectors(m=9, d=5, seed=0):
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def all_pairs(m):
    return torch.ones(m, m, dtype=torch.bool)


def naive_centred_cosines(vectors, seen):
    """From the vectors themselves, one pair at a time."""
    m = len(vectors)
    result = np.zeros((m, m))
    for i in range(m):
        members = [j for j in range(m) if j == i or seen[i, j]]
        centre = sum(vectors[j] for j in members) / len(members)
        for j in range(m):
            a, b = vectors[i] - centre, vectors[j] - centre
            if np.linalg.norm(a) > 1e-9 and np.linalg.norm(b) > 1e-9:
                result[i, j] = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    return result


def test_cosines_agree_with_torch():
    vectors = some_vectors()
    expected = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None, :], dim=-1)
    torch.testing.assert_close(cosines_from_gram(gram(vectors)), expected, rtol=0, atol=1e-14)


def test_cosines_are_symmetric_bounded_and_exactly_one_on_the_diagonal():
    vectors = torch.cat([some_vectors(30, 3), some_vectors(30, 3) * 1e-3])
    cosines = cosines_from_gram(gram(vectors))
    assert torch.equal(cosines, cosines.T)
    assert cosines.abs().max() <= 1
    assert torch.equal(cosines.diagonal(), torch.ones(60, dtype=torch.float64))


def test_rounding_cannot_push_a_cosine_beyond_one():
    cosines = cosines_from_gram(torch.tensor([[1.0, 1.0 + 1e-6], [1.0 + 1e-6, 1.0]], dtype=torch.float64))
    assert torch.equal(cosines, torch.ones(2, 2, dtype=torch.float64))


def test_a_squared_norm_that_rounding_made_negative_is_zero():
    cosines = cosines_from_gram(torch.tensor([[-1e-12, 0.0], [0.0, 1.0]], dtype=torch.float64))
    assert cosines.tolist() == [[0, 0], [0, 1]]


def test_a_zero_vector_has_cosine_zero_with_everything_and_itself():
    vectors = some_vectors(4)
    vectors[2] = 0
    cosines = cosines_from_gram(gram(vectors))
    assert torch.equal(cosines[2], torch.zeros(4, dtype=torch.float64))
    assert torch.equal(cosines[:, 2], torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1e30, 1e150])
def test_cosines_do_not_depend_on_the_unit_of_the_vectors(scale):
    vectors = some_vectors(6)
    expected = cosines_from_gram(gram(vectors))
    torch.testing.assert_close(cosines_from_gram(gram(vectors * scale)), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_a_nonfinite_vector_is_unknown_in_its_pairs_only(broken):
    vectors = some_vectors(5)
    vectors[1] = 0
    whole = cosines_from_gram(gram(vectors))
    vectors[3] = broken
    cosines = cosines_from_gram(gram(vectors))
    others = torch.tensor([0, 1, 2, 4])
    assert cosines[3].isnan().all()
    assert cosines[:, 3].isnan().all()
    assert torch.equal(cosines[others][:, others], whole[others][:, others])


@pytest.mark.parametrize("function", [cosines_from_gram, distances_from_gram])
def test_results_are_float64_and_the_gram_matrix_is_unchanged(function):
    products = gram(some_vectors(4)).float()
    before = products.clone()
    assert function(products).dtype == torch.float64
    assert torch.equal(products, before)


@pytest.mark.parametrize("seed", range(5))
def test_centred_cosines_equal_those_of_the_vectors(seed):
    vectors = some_vectors(11, 7, seed)
    seen = torch.rand(11, 11, generator=torch.Generator().manual_seed(seed)) < 0.5
    expected = naive_centred_cosines(vectors.numpy(), seen.numpy())
    actual = centred_cosines(gram(vectors), seen)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-12)


def test_centring_removes_a_large_common_part():
    vectors = some_vectors(8, 4)
    seen = all_pairs(8)
    shifted = centred_cosines(gram(vectors + 1e3), seen)
    torch.testing.assert_close(shifted, centred_cosines(gram(vectors), seen), rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("m", [2, 3, 7, 24])
def test_identical_clients_have_cosine_exactly_zero(dtype, m):
    vector = torch.randn(100_003, generator=torch.Generator().manual_seed(m), dtype=dtype)
    products = gram(vector.repeat(m, 1))
    noise = torch.rand(m, m, generator=torch.Generator().manual_seed(m), dtype=dtype) - 0.5
    products = products * (1 + 10 * torch.finfo(dtype).eps * (noise + noise.T))
    assert torch.equal(centred_cosines(products, all_pairs(m)), torch.zeros(m, m, dtype=torch.float64))


def test_a_receiver_without_senders_has_centred_cosine_zero():
    seen = all_pairs(5)
    seen[2] = False
    assert torch.equal(centred_cosines(gram(some_vectors(5)), seen)[2], torch.zeros(5, dtype=torch.float64))


def test_vectors_beyond_the_tolerance_are_distinguished():
    vectors = torch.ones(4, 4, dtype=torch.float64) + 1e-3 * torch.eye(4, dtype=torch.float64)
    cosines = centred_cosines(gram(vectors), all_pairs(4))
    expected = torch.full((4, 4), -1 / 3, dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(cosines, expected, rtol=0, atol=1e-6)


def test_a_huge_unseen_client_does_not_change_other_cosines():
    vectors = some_vectors(6)
    seen = all_pairs(6)
    seen[:5, 5] = False
    small = centred_cosines(gram(vectors), seen)
    vectors[5] *= 1e8
    torch.testing.assert_close(centred_cosines(gram(vectors), seen)[:5, :5], small[:5, :5], rtol=0, atol=1e-14)


def test_a_nonfinite_client_affects_only_receivers_that_see_it():
    vectors = some_vectors(5)
    seen = all_pairs(5)
    seen[:3, 4] = False
    whole = centred_cosines(gram(vectors), seen)
    vectors[4] = math.nan
    cosines = centred_cosines(gram(vectors), seen)
    assert torch.equal(cosines[:3, :4], whole[:3, :4])
    assert cosines[3:].isnan().all()
    assert cosines[:, 4].isnan().all()


def test_distances_agree_with_torch_and_have_a_zero_diagonal():
    vectors = some_vectors()
    distances = distances_from_gram(gram(vectors))
    torch.testing.assert_close(distances, torch.cdist(vectors, vectors), rtol=0, atol=1e-12)
    assert torch.equal(distances.diagonal(), torch.zeros(9, dtype=torch.float64))


def test_rounding_does_not_give_nan_distances():
    products = torch.tensor([[1.0, 1.0 + 1e-6], [1.0 + 1e-6, 1.0]], dtype=torch.float64)
    assert torch.equal(distances_from_gram(products), torch.zeros(2, 2, dtype=torch.float64))

import pytest
import torch

from extraction.stacks import Stacks


@pytest.fixture(name="tensors")
def tensors_fixture() -> dict[str, torch.Tensor]:
    """Two shapes that take turns, and a module without directions."""
    sizes = {"a": (2, 5), "b": (2, 3), "c": (2, 5), "d": (0, 3), "e": (2, 3)}
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(size, generator=generator) for name, size in sizes.items()}


def test_reads_as_the_dictionary(tensors):
    """Same modules in the same order with the same values; of Stacks nothing is copied."""
    stacks = Stacks.of(tensors)
    assert list(stacks) == list(tensors)
    assert len(stacks) == len(tensors)
    assert all(torch.equal(stacks[name], tensor) for name, tensor in tensors.items())
    assert [len(names) for names in stacks.stacks] == [2, 2, 1]
    assert Stacks.of(stacks) is stacks


def test_arithmetic_on_stacks_is_that_on_modules(tensors):
    """`map` gives every module what the function gives it alone; views write through; `rows` gathers any modules."""
    stacks = Stacks.of(tensors)
    doubled = stacks.map(lambda stack: 2 * stack)
    assert list(doubled) == list(tensors)
    assert all(torch.equal(doubled[name], 2 * tensor) for name, tensor in tensors.items())
    stacks["c"].zero_()
    assert torch.equal(stacks.rows(("a", "c")), torch.stack([tensors["a"], torch.zeros(2, 5)]))
    assert torch.equal(stacks.rows(("c", "a")), torch.stack([torch.zeros(2, 5), tensors["a"]]))

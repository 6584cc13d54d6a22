"""`loss_weights`: the normaliser that each loss type (GRPO, Dr.GRPO, DAPO, ...) gives every sample of a group.

Shapes: G samples in a group, T tokens. At frozen weights the ratio is 1 and the loss of sample i is

    L_i = -A_i w_i sum_t (logp_it mask_it)          the loss of the group is sum_i L_i

with w_i, by TRL's names and formulas (len_i = scored tokens of sample i):

    grpo      1 / (len_i G)                      each sample counts the same (Shao et al. 2024, arXiv 2402.03300)
    dr_grpo   1 / (G max_completion_length)      no length bias (Liu et al. 2025, arXiv 2503.20783)
    dapo      1 / sum of all len_i               each token of the global batch (Yu et al. 2025, arXiv 2503.14476)
    nll       1 / len_i, with A_i = 1            mean negative log-likelihood per token: no advantage

To add a loss type: a row in this table, a branch in `loss_weights`, and its word in `extraction.settings.LossType`.
"""

import torch
from torch import Tensor

from extraction.settings import Normaliser


def loss_weights(lengths: Tensor, normaliser: Normaliser) -> Tensor:
    """Return the normaliser w_i of every sample of a group.

    Args:
        lengths: (G,) scored tokens of every sample; for `dapo` of the whole batch, over all ranks.
        normaliser: a row of the table above, and the generation limit that `dr_grpo` divides by.

    Returns:
        (G,) float32 (float64 for float64 lengths). A sample without tokens has an empty sum and the weight 0.
    """
    lengths = lengths if lengths.dtype == torch.float64 else lengths.float()
    num_samples, denominator = len(lengths), lengths
    if normaliser.loss_type == "grpo":
        denominator = lengths * num_samples
    elif normaliser.loss_type == "dr_grpo":
        assert normaliser.max_completion_length is not None
        denominator = lengths.new_tensor(num_samples * normaliser.max_completion_length)
    elif normaliser.loss_type == "dapo":
        denominator = lengths.sum()
    # Two where(): the inner one keeps the division of an empty completion from being 1 / 0.
    empty = lengths == 0
    return torch.where(empty, 0.0, 1.0 / torch.where(empty, 1.0, denominator))

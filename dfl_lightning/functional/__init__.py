"""The mathematics of the algorithms as pure functions on tensors: no state, no Lightning.

Numbers for links are plain tensors with an entry for each link of a list, and come before the list among the arguments.
NaN is an unknown similarity; all numbers for links are float64; ties go to the lowest id.
"""

from dfl_lightning.functional.baselines.dispfl import erk_densities, pruned_share, searched_mask
from dfl_lightning.functional.baselines.federico import averaged_losses, collaborator_weights
from dfl_lightning.functional.baselines.fedfomo import affinity_step, epsilon_greedy, first_order_gain
from dfl_lightning.functional.baselines.ifca import best_server
from dfl_lightning.functional.baselines.knn import best_vote_shares, neighbour_votes
from dfl_lightning.functional.baselines.pacfl import class_vectors, clusters_below, proximity
from dfl_lightning.functional.baselines.pens import more_often_than_expected
from dfl_lightning.functional.baselines.pfedgraph import graph_rows, nearest_on_simplex
from dfl_lightning.functional.baselines.prototypes import (
    class_sums,
    has_prototype,
    prototype_probabilities,
    prototype_shares,
)
from dfl_lightning.functional.evaluation import (
    OverClients,
    accuracy_summary,
    client_mean,
    friend_accuracy,
    neighbour_precision_recall,
    of_clients,
    over_clients,
    score_summary,
    undefined,
    undefined_counts,
    without_accuracy,
    without_mean,
    worst_decile_mean,
)
from dfl_lightning.functional.events import (
    BufferedEvents,
    BufferedServer,
    buffered_coefficients,
    pair_coefficients,
)
from dfl_lightning.functional.mixing import (
    count_votes,
    exchange_weights,
    metropolis_weights,
    push_sum_weights,
    server_step,
    uniform_weights,
)
from dfl_lightning.functional.outgoing import (
    clipped,
    entries_kept,
    largest_entries,
    quantized,
    quantized_bytes,
)
from dfl_lightning.functional.robust.attacks import hidden_deviations, shifted_means
from dfl_lightning.functional.robust.columns import column_medians, trimmed_means
from dfl_lightning.functional.robust.geometric_median import geometric_median_weights
from dfl_lightning.functional.robust.krum import krum_needs, krum_weights
from dfl_lightning.functional.robust.neighbourhoods import Neighbourhoods, pairs_received
from dfl_lightning.functional.robust.robust_weights import (
    accepted_models,
    balanced_weights,
    clipped_weights,
    clipping_radii,
)
from dfl_lightning.functional.selection import above_threshold
from dfl_lightning.functional.similarity import centred_cosines, cosines_from_gram, distances_from_gram
from dfl_lightning.functional.simulated_time import link_seconds, transfer_seconds
from dfl_lightning.functional.systems.afind import (
    adaptive_threshold,
    boltzmann_weights,
    entropy_sum,
    literal_threshold,
    nearness,
    normalised_entropy,
    participation_ratio,
    sampled_neighbours,
    selection_probabilities,
    smoothed_loss,
    standardised,
    updated_probabilities,
)
from dfl_lightning.functional.systems.dpfl import adding_probability, bggc, candidates_in_order, ggc, marginal_gain
from dfl_lightning.functional.systems.fdms import (
    distance_scores,
    elimination_threshold,
    friends,
    observed_share,
    remaining_candidates,
    running_mean,
    similarity_scores,
)
from dfl_lightning.functional.systems.fdms_receivers import PairScores, count_pairs, distinct_pairs
from dfl_lightning.functional.systems.panm import (
    gradient_similarity,
    loss_similarity,
    rematched_neighbours,
    same_cluster,
)
from dfl_lightning.functional.systems.panm_theory import (
    initialisation_probabilities,
    literal_initialisation_probabilities,
    panm_models_in_round,
    panm_models_received,
)
from dfl_lightning.functional.waves import next_wave, round_span, staleness_factors, to_nanoseconds, versions_kept

__all__ = [
    "BufferedEvents",
    "BufferedServer",
    "Neighbourhoods",
    "OverClients",
    "PairScores",
    "above_threshold",
    "accepted_models",
    "accuracy_summary",
    "adaptive_threshold",
    "adding_probability",
    "affinity_step",
    "averaged_losses",
    "balanced_weights",
    "best_server",
    "best_vote_shares",
    "bggc",
    "boltzmann_weights",
    "buffered_coefficients",
    "candidates_in_order",
    "centred_cosines",
    "class_sums",
    "class_vectors",
    "client_mean",
    "clipped",
    "clipped_weights",
    "clipping_radii",
    "clusters_below",
    "collaborator_weights",
    "column_medians",
    "cosines_from_gram",
    "count_pairs",
    "count_votes",
    "distance_scores",
    "distances_from_gram",
    "distinct_pairs",
    "elimination_threshold",
    "entries_kept",
    "entropy_sum",
    "epsilon_greedy",
    "erk_densities",
    "exchange_weights",
    "first_order_gain",
    "friend_accuracy",
    "friends",
    "geometric_median_weights",
    "ggc",
    "gradient_similarity",
    "graph_rows",
    "has_prototype",
    "hidden_deviations",
    "initialisation_probabilities",
    "krum_needs",
    "krum_weights",
    "largest_entries",
    "link_seconds",
    "literal_initialisation_probabilities",
    "literal_threshold",
    "loss_similarity",
    "marginal_gain",
    "metropolis_weights",
    "more_often_than_expected",
    "nearest_on_simplex",
    "nearness",
    "neighbour_precision_recall",
    "neighbour_votes",
    "next_wave",
    "normalised_entropy",
    "observed_share",
    "of_clients",
    "over_clients",
    "pair_coefficients",
    "pairs_received",
    "panm_models_in_round",
    "panm_models_received",
    "participation_ratio",
    "prototype_probabilities",
    "prototype_shares",
    "proximity",
    "pruned_share",
    "push_sum_weights",
    "quantized",
    "quantized_bytes",
    "remaining_candidates",
    "rematched_neighbours",
    "round_span",
    "running_mean",
    "same_cluster",
    "sampled_neighbours",
    "score_summary",
    "searched_mask",
    "selection_probabilities",
    "server_step",
    "shifted_means",
    "similarity_scores",
    "smoothed_loss",
    "staleness_factors",
    "standardised",
    "to_nanoseconds",
    "transfer_seconds",
    "trimmed_means",
    "undefined",
    "undefined_counts",
    "uniform_weights",
    "updated_probabilities",
    "versions_kept",
    "without_accuracy",
    "without_mean",
    "worst_decile_mean",
]

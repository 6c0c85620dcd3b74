"""Every golden number once, with where it comes from."""

# Paper 2.2, group of 16 with binary rewards: successes -> (advantage of a success, of a failure).
GROUP_ADVANTAGES = {
    1: (3.8730, -0.2582),
    4: (1.7321, -0.5774),
    8: (1.0000, -1.0000),
    15: (0.2582, -3.8730),
}
LEAVE_ONE_OUT_ADVANTAGES = {
    1: (1.0000, -0.2582),
    4: (1.9322, -0.5826),
    8: (1.0328, -1.0328),
    15: (0.2582, -1.0000),
}
# Four-member groups, population spread (1 success; one low reward).
LONE_SUCCESS_OF_4 = ([1.0, 0.0, 0.0, 0.0], [1.7321, -0.5774, -0.5774, -0.5774])
LONE_FAILURE_OF_4 = ([0.2, 0.9, 0.9, 0.9], [-1.7321, 0.5774, 0.5774, 0.5774])
GOLDEN_ATOL = 6e-5  # the printed numbers have four decimals

LN2 = 0.6931472
UNIGRAM = (0.5, 0.25, 0.125, 0.125)  # the crafted model whose losses are ln2 x [1, 2, 3, 3]
K3 = {0.0: 0.0, LN2: 0.3068528, -LN2: 0.1931472, -200.0: 199.0}

# The published 30B-A3B model: all weights, and those a token meets (both embeddings counted).
NANO_PARAMS = 31_577_940_288
NANO_ACTIVE_PARAMS = 3_580_076_352

# Paper 3.1: log-probs of four tokens under teacher, trainer and sampler; advantage, trainer/sampler
# ratio, weight inside the band [0.5, 2], and the loss of the one sequence.
MOPD_TEACHER = [-0.2, -1.0, -0.5, -3.0]
MOPD_TRAINER = [-0.5, -0.4, -0.5, -1.0]
MOPD_SAMPLER = [-0.6, -0.35, -1.4, -0.2]
MOPD_ADVANTAGE = [0.3, -0.6, 0.0, -2.0]
MOPD_WEIGHTED = [0.33155, -0.57074, 0.0, 0.0]
MOPD_LOSS = -0.0156299
MOPD_DROPPED = 2

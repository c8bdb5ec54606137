"""The formulas of personalized and decentralized baselines."""

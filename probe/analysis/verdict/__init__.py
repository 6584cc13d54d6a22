"""Turn one run's evidence into its verdict: findings, decision, advice; also validity and the seed's tables."""

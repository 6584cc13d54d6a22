"""Turn one run's evidence into its verdict: findings, decision, advice, validity."""

"""What a run is told: arms, loss settings and the words that options accept. No torch."""

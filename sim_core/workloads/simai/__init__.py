"""SimAI texts: grammar, sections, the model behind them, doubtful records, and the workload that they are."""

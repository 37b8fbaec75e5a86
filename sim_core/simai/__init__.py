"""SimAI: the cost model of SimAI-Analytical as the second fidelity, its tables, and plans as SimAI texts."""

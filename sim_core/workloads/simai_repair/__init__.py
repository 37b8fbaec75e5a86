"""The values of a SimAI text put right: doubtful records, values that users give instead, and the model behind the text."""

"""Questions about a plan of a result: each is a variation of it, or several, and a section that says what comes out."""

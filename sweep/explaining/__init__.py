"""Why a plan is as it is, what changes of it or of its machine would give, what a constraint costs, how sure the pick is."""

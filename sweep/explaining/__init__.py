"""Why one plan is as it is: where its step goes, what fills its memory, what each change of one axis would give."""

"""Commands, each a function `NAME_command`: its options, its call and its printer."""

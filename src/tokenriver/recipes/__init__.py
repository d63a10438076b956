"""Public data sets by name: a recipe says what a data set is, and one engine makes it."""

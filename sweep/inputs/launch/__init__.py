"""Launch files of training frameworks, a module for each format: the model that they train and the plan that they start."""

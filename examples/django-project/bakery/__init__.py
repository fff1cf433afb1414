"""Orders of bread, and the tasks that bake them."""

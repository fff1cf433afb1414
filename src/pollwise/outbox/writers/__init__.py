"""How records are put on the connections of each library."""

"""The migrations of the bakery, as `manage.py makemigrations` writes them."""

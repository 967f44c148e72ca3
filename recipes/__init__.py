"""Recipes as data: YAML files, their schema and their loader."""

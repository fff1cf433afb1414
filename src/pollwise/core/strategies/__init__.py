"""The strategies: immutable recipes for when to poll again, each with its pacer, the running state
for one source. `base` is the contract; users import them from `pollwise`.
"""

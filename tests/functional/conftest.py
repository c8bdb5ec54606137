import hypothesis

hypothesis.settings.register_profile("functional", deadline=None, derandomize=True, database=None, max_examples=30)
hypothesis.settings.load_profile("functional")

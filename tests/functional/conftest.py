import hypothesis

hypothesis.settings.register_profile("functional", max_examples=30)
hypothesis.settings.load_profile("functional")

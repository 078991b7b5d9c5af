def wrong_settings():
    return ["a"]

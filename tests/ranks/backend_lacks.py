"""What a backend is known not to have. It is tested that it really has not."""

LACKS = {
    "gloo": [
        "messages_need_not_be_contiguous",
        "sends_of_other_sizes_to_everybody",
        "more_types_and_operations",
        "truth_values",
    ],
}

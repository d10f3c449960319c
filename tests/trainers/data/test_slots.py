from trainers.data.slots import BatchSlots


def test_slots_cover_the_batch():
    slots = [BatchSlots(24, 6, worker, 3).slots for worker in range(3)]
    assert [p for part in slots for p in part] == list(range(24))

"""One text of the script `join` each that a mutant takes out: name, rule, old text, new text."""

from __future__ import annotations

JOIN_MUTANTS: tuple[tuple[str, str, str, str], ...] = (
    (
        "older-calls-join",
        "of two starts the one whose call was later is the newer",
        "plan < tonumber(was_plan) or (plan == tonumber(was_plan) and ",
        "(",
    ),
    (
        "older-starts-join",
        "of two starts of one call the one whose tasks came later is the newer",
        "and attempt <= tonumber(was_attempt)",
        "and false",
    ),
    (
        "calls-fence",
        "a call that starts nothing disturbs nobody",
        "  redis.call('HSET', query, 'plan:' .. place, plan)\n",
        "  redis.call('HSET', query, 'plan:' .. place, plan, 'epoch', plan)\n",
    ),
    (
        "epochs-of-starts-equal",
        "a start that joins later has a greater epoch",
        "text(math.max(tonumber(newest) + 1, now_ms))",
        "newest",
    ),
    (
        "start-not-noted",
        "a start that has joined is the newest one from then on",
        "table.concat({ARGV[2], run, ARGV[4], epoch, ARGV[5]}, ' ')",
        "joined or table.concat({ARGV[2], run, ARGV[4], epoch, ARGV[5]}, ' ')",
    ),
    (
        "any-query-joins",
        "a store belongs to one query",
        "if of_query ~= ARGV[5] then return {'QUERY', of_query} end",
        "",
    ),
    (
        "two-operators-of-a-run",
        "a run has one operator on a store",
        "    if was_plan ~= ARGV[2] then return {'TWICE', was_plan} end\n",
        "",
    ),
    (
        "any-number-of-partitions",
        "the number of partitions never changes",
        "if count ~= partitions then return {'PARTITIONS', count} end",
        "",
    ),
    (
        "any-layout",
        "the key columns of a store never change",
        "if layout ~= ARGV[9] then return {'LAYOUT', layout} end",
        "",
    ),
    (
        "any-first-batch",
        "the batch that a store begins with never changes",
        "if begun ~= first then return {'FIRST', begun} end",
        "",
    ),
    (
        "batches-before-the-newest-begin",
        "a batch before the newest one does not begin again",
        "if batch < tonumber(last) then return {'OLD', last} end",
        "",
    ),
    (
        "batches-are-left-out",
        "no batch is left out",
        "  if batch > tonumber(last) + 1 then return {'GAP', last} end\n",
        "",
    ),
    (
        "newest-batch-not-noted",
        "a batch that begins is the newest one from then on",
        "table.concat({ARGV[6], first, partitions, run, ARGV[9]}, ' ')",
        "known or table.concat({ARGV[6], first, partitions, run, ARGV[9]}, ' ')",
    ),
    (
        "another-time-for-each-start",
        "a batch that is repeated keeps the time at which it began first",
        "    began_ms, below = at_ms, of_below\n",
        "    below = of_below\n",
    ),
    (
        "another-time-for-each-task",
        "all tasks of a batch have one time",
        "    if of_run == run then return {'OK', epoch, at_ms, watermark} end\n",
        "    if of_run == run then return {'OK', epoch, text(now_ms), watermark} end\n",
    ),
    (
        "frame-of-another-batch",
        "a frame that was shown for one batch is let into no other",
        "(of_run or shown_for)",
        "of_run",
    ),
    (
        "second-frame-of-a-batch",
        "a run has one frame for each batch",
        "(of_run or shown_for)",
        "shown_for and shown_for ~= ARGV[6]",
    ),
    (
        "frames-told-apart-by-time",
        "what tells frames apart is not the time that their batch was planned for",
        "local shown_at = string.find(frames, ':' .. frame, 1, true)",
        "frames = redis.call('HGET', query, 'planned:' .. place) or ''\n"
        "local shown_at = string.find(frames, ':' .. planned .. ':', 1, true)",
    ),
    (
        "frames-forgotten",
        "a frame that was shown stays known in later batches",
        "  known[#known + 1] = ARGV[6] .. ':' .. frame\n",
        "  known = {ARGV[6] .. ':' .. frame}\n",
    ),
    (
        "what-a-rewind-left-counts",
        "nothing goes on from what was written before the batch was planned anew",
        "if mark[1] == of_batch and mark[4] == by then below = mark[3] end",
        "below = '0'",
    ),
    (
        "every-run-writes-anew",
        "what a run wrote counts while another one repeats the batch as it was planned",
        "if mark[1] == of_batch and mark[4] == by then below = mark[3] end",
        "",
    ),
    (
        "forgotten-query-without-format",
        "a query that was forgotten before its first batch is begun as a new one",
        "'f', '1', 'run:'",
        "'run:'",
    ),
)

# Chooses what link/text-order.ld names: patterns for the names of functions, few and short, that catch the functions of
# each group and little else.
#
# In: a line SIZE GROUP NAME for each function, with its size in bytes and the first group that calls it (1, 2, ...), 0
# for none. Out: a line GROUP PATTERN for each pattern. A pattern is a name, or the beginning of names with a `*`.
#
# The names make a tree, whose inner nodes are crates, modules and types. A node's pattern costs the size of all that it
# catches, and a fixed sum for being one pattern more; its parts may cost less. -v pattern_cost=BYTES is that sum.

# The next piece of a mangled name: lengths, identifiers and `..` begin one.
function piece(name) {
  match(name, /^[0-9]*[^0-9.]+(\.\.)?|^[0-9]+|^\./)
  return substr(name, 1, RLENGTH)
}

function add(name, size, group,    node, rest, next_piece) {
  node = 0
  for (rest = name; rest != ""; rest = substr(rest, length(next_piece) + 1)) {
    next_piece = piece(rest)
    if (!((node, next_piece) in child)) {
      child[node, next_piece] = ++nodes
      above[nodes] = node
      inner[node] = 1
      text[nodes] = text[node] next_piece
    }
    node = child[node, next_piece]
  }
  bytes[node, group] += size
  ends[node] = 1
}

# Sets, for what no earlier group has taken below a node: all[node], wanted[node], cost[node], and choice[node], the
# nodes that the best patterns stand for. A node has a higher number than the one that it is a part of.
function weigh(group,    node, up) {
  for (node = 0; node <= nodes; node++) {
    all[node] = wanted[node] = cost[node] = 0
    choice[node] = ""
    if (node && taken[above[node]]) taken[node] = 1
  }
  for (node = nodes; node > 0; node--) {
    if (taken[node]) continue
    if (ends[node] && !taken_end[node]) {
      all[node] += all_of_name(node)
      wanted[node] += bytes[node, group]
      if (bytes[node, group]) {
        cost[node] += all_of_name(node) + pattern_cost
        choice[node] = choice[node] " =" node
      }
    }
    if (inner[node] && wanted[node] && all[node] + pattern_cost < cost[node]) {
      cost[node] = all[node] + pattern_cost
      choice[node] = " " node
    }
    up = above[node]
    all[up] += all[node]
    wanted[up] += wanted[node]
    cost[up] += cost[node]
    choice[up] = choice[up] choice[node]
  }
}

function all_of_name(node,    g, sum) {
  for (g = 0; g <= groups; g++) sum += bytes[node, g]
  return sum
}

{
  add($3, $1, $2)
  if ($2 > groups) groups = $2
}

END {
  for (group = 1; group <= groups; group++) {
    weigh(group)
    chosen = split(choice[0], list, " ")
    for (i = 1; i <= chosen; i++) {
      if (sub(/^=/, "", list[i])) {
        taken_end[list[i]] = 1
        print group, text[list[i]]
      } else {
        taken[list[i]] = 1
        print group, text[list[i]] "*"
      }
    }
  }
}

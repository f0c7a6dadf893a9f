# The report as JSON: steps (name, outcome, seconds, note by tabs), with DIR/NAME.figures ("name value" lines) for each.
function text(s)
{
    gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); gsub(/[\001-\037]/, " ", s)
    return "\"" s "\""
}
function members(file,    line, n, out, value)
{
    while ((getline line < file) > 0) {
        if (!match(line, / /)) continue
        value = substr(line, RSTART + 1)
        out = out (n++ ? ", " : "") text(substr(line, 1, RSTART - 1)) ": " (value ~ /^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$/ ? value : text(value))
    }
    close(file)
    return "{" out "}"
}
BEGIN { FS = "\t"; printf "{\n  \"report\": \"gpu-check\", \"kind\": %s, \"seconds\": %d,\n  \"steps\": [", text(kind ? kind : "gpu"), seconds }
{
    count[$2]++
    printf "%s\n    {\"name\": %s, \"outcome\": %s, \"seconds\": %d, \"note\": %s, \"figures\": %s}", (NR > 1 ? "," : ""), text($1), text($2), $3, text($4), members(dir "/" $1 ".figures")
}
END {
    printf "\n  ],\n  \"passed\": %d, \"failed\": %d, \"slow\": %d, \"skipped\": %d\n}\n", count["passed"], count["failed"], count["slow"], count["skipped"]
}

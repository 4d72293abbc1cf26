package runs

import (
	"bytes"
	"encoding/json"
	"strings"
)

// asJSON is v for a jsonb column: NUL characters, which jsonb refuses, become
// U+FFFD.
func asJSON(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	return sanitizeJSON(data), nil
}

// sanitizeText is s as Postgres text can hold it.
func sanitizeText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// sanitizeJSON replaces the escape of NUL, which jsonb refuses; an escaped
// backslash before it is not part of it.
func sanitizeJSON(data []byte) string {
	if !bytes.Contains(data, []byte(`\u0000`)) {
		return string(data)
	}
	var out strings.Builder
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' || i+1 >= len(data) {
			out.WriteByte(data[i])
			continue
		}
		if bytes.HasPrefix(data[i:], []byte(`\u0000`)) {
			out.WriteString(`\ufffd`)
			i += 5
			continue
		}
		out.Write(data[i : i+2])
		i++
	}
	return out.String()
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

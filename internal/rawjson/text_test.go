package rawjson_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/turn/internal/rawjson"
)

func TestAppendTextEscapesOnlyWhatJSONRequires(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", `""`},
		{"quotes and backslashes", `a"b\c/`, `"a\"b\\c/"`},
		{"control characters", "\x00\b\f\n\r\t\x1f\x7f", `"\u0000\u0008\u000c\n\r\t\u001f` + "\x7f\""},
		{"no HTML escapes", "<a href='x'>&</a>", `"<a href='x'>&</a>"`},
		{"line separators as they are", "\u2028\u2029", "\"\u2028\u2029\""},
		{"beyond ASCII as it is", "Tromsø 😀 \ufffd", "\"Tromsø 😀 \ufffd\""},
		{"a lone surrogate is its escape", "a\xed\xa0\x80b\xed\xbf\xbf", `"a\ud800b\udfff"`},
		{"bytes that are not UTF-8", "a\xffb\xc3", "\"a\ufffdb\ufffd\""},
		{"what only looks like a surrogate", "\xff\xa0\x80\xed\x20\x80\xed\xa0\x20", "\"\ufffd\ufffd\ufffd\ufffd \ufffd\ufffd\ufffd \""},
		{"half a surrogate", "\xed\xa0", "\"\ufffd\ufffd\""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := string(rawjson.AppendText(nil, test.text)); got != test.want {
				t.Errorf("AppendText(%q) is %q, want %q", test.text, got, test.want)
			}
		})
	}
	if got := string(rawjson.AppendText([]byte("["), "a")); got != `["a"` {
		t.Errorf("AppendText does not append: %s", got)
	}
}

func TestTextIsOfStringsOnly(t *testing.T) {
	for _, value := range []string{``, `null`, `1`, `{}`, `["a"]`, `true`} {
		if text, ok := rawjson.Text([]byte(value)); ok || text != "" {
			t.Errorf("Text(%q) is %q, %v", value, text, ok)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, text := range []string{
		"", "plain", `"\/` + "\b\f\n\r\t\x00\x1f\x7f", "<>&\u2028\u2029", "Tromsø 😀", "\xff", "a\xed\xa0\x80", "\xed\xa0\x80\xed\xb0\x80",
		"\xed\xb0\x80\xed\xa0\x80", "\xed\xa0\x80x\xed\xb0\x80", "\xed\xa0", "\xed\x9f\xbf", "\xee\x80\x80", `\u0041\ud800`, "\xf4\x90\x80\x80",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		written := rawjson.AppendText(nil, text)
		if err := rawjson.Check(written); err != nil {
			t.Fatalf("AppendText(%q) is %q: %v", text, written, err)
		}
		var read string
		if err := json.Unmarshal(written, &read); err != nil {
			t.Fatal(err)
		}
		got, ok := rawjson.Text(written)
		replaced, kept := withoutSurrogates(text)
		if !ok || kept && got != text {
			t.Fatalf("%q comes back from %q as %q, %v", text, written, got, ok)
		}
		if kept && read != replaced {
			t.Fatalf("encoding/json reads %q as %q, want %q", written, read, replaced)
		}
	})
}

// FuzzTextReads compares how escapes are read with encoding/json.
func FuzzTextReads(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		if !rawjson.IsString(value) || !rawjson.Valid(value) || value[len(value)-1] != '"' {
			return
		}
		var want string
		if err := json.Unmarshal(value, &want); err != nil {
			t.Fatal(err)
		}
		got, _ := rawjson.Text(value)
		if replaced, _ := withoutSurrogates(got); replaced != want {
			t.Fatalf("Text(%q) is %q, want %q", value, got, want)
		}
		if again, _ := rawjson.Text(rawjson.AppendText(nil, got)); again != got {
			t.Fatalf("%q is %q after a round trip", got, again)
		}
	})
}

// withoutSurrogates is text with each lone surrogate replaced by U+FFFD, as
// encoding/json does. It reports false for what no JSON string stands for: bytes
// that are not UTF-8, and the two halves of a pair side by side.
func withoutSurrogates(text string) (string, bool) {
	var out strings.Builder
	high := false // the character before was a high surrogate
	for i := 0; i < len(text); {
		if s := text[i:]; len(s) >= 3 && s[0] == 0xED && s[1] >= 0xA0 && s[1] <= 0xBF && s[2] >= 0x80 && s[2] <= 0xBF {
			if high && s[1] >= 0xB0 {
				return "", false
			}
			high = s[1] < 0xB0
			out.WriteRune(utf8.RuneError)
			i += 3
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			return "", false
		}
		high = false
		out.WriteRune(r)
		i += n
	}
	return out.String(), true
}

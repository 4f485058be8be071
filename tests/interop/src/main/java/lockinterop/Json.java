package lockinterop;

import java.util.Map;
import java.util.StringJoiner;

/** As much of JSON as answers need. */
final class Json {
    private Json() {
    }

    static String of(Object value) {
        if (value instanceof Map<?, ?> map) {
            StringJoiner fields = new StringJoiner(",", "{", "}");
            map.forEach((name, field) -> fields.add(text(name.toString()) + ":" + of(field)));
            return fields.toString();
        }
        return value == null || value instanceof Number || value instanceof Boolean
            ? String.valueOf(value) : text(value.toString());
    }

    private static String text(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < ' ') {
                json.append(String.format("\\u%04x", (int) c));
            } else {
                json.append(c);
            }
        }
        return json.append('"').toString();
    }
}
